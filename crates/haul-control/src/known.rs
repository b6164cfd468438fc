//! The servers that a client knows, one to a line: `HOST:PORT` and the server's public key.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{Code, Fault};
use crate::identity::PublicKey;
use crate::printable;

/// A file of known servers.
#[derive(Debug, Clone)]
pub struct Known {
    path: PathBuf,
    /// Lines that are no entry are kept as they are.
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Server(String, PublicKey),
    Comment(String),
}

/// Returns the name of a server in the file: an IPv6 address in brackets.
#[must_use]
pub fn name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

impl Known {
    /// Reads the file; one that does not exist knows no server.
    ///
    /// # Errors
    /// The file cannot be read, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Fault::file(&format!("cannot read '{shown}'"), &error)),
        };
        Self::parse(path, &text)
    }

    /// Parses the text of a file that has this path.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Fault> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let lines = text.lines().enumerate().map(|(index, line)| {
            parse(line).map_err(|why| {
                Fault::new(Code::Usage, format!("'{shown}', line {}: {why}", index + 1))
                    .hint("write HOST:PORT KEY, or remove the line")
            })
        });
        Ok(Self {
            path: path.to_owned(),
            lines: lines.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the keys of a server.
    #[must_use]
    pub fn keys(&self, host: &str, port: u16) -> Vec<PublicKey> {
        let wanted = name(host, port);
        let key = |line: &Line| match line {
            Line::Server(name, key) if *name == wanted => Some(*key),
            _ => None,
        };
        self.lines.iter().filter_map(key).collect()
    }

    /// Makes `key` the only one of the server, and writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn trust(&mut self, host: &str, port: u16, key: PublicKey) -> Result<(), Fault> {
        self.remove(host, port);
        self.lines.push(Line::Server(name(host, port), key));
        self.write()
    }

    /// Forgets a server, and writes the file; returns whether it was known.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget(&mut self, host: &str, port: u16) -> Result<bool, Fault> {
        if !self.remove(host, port) {
            return Ok(false);
        }
        self.write().map(|()| true)
    }

    fn remove(&mut self, host: &str, port: u16) -> bool {
        let (name, before) = (name(host, port), self.lines.len());
        self.lines
            .retain(|line| !matches!(line, Line::Server(other, _) if *other == name));
        self.lines.len() < before
    }

    /// Writes the file.
    fn write(&self) -> Result<(), Fault> {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Server(name, key) => text.push_str(&format!("{name} {key}\n")),
                Line::Comment(comment) => text.push_str(&format!("{comment}\n")),
            }
        }
        replace(&self.path, &text, 0o644, std::fs::File::sync_all)
    }
}

/// Calls of [`replace`] so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Replaces the content of a file in one step, and makes its directory if it is missing
/// ([`make_private_dir`]). `sync` runs before the new content replaces the old one.
///
/// # Errors
/// It cannot be written.
pub fn replace(
    path: &Path,
    text: &str,
    mode: u32,
    sync: impl FnOnce(&std::fs::File) -> std::io::Result<()>,
) -> Result<(), Fault> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    if let Some(parent) = path.parent() {
        make_private_dir(parent)?;
    }
    let mut new = path.to_owned().into_os_string();
    // Of this call alone: other threads and processes may replace the same file.
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    new.push(format!(".{}.{call}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&new)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            sync(&file)
        })
        .and_then(|()| std::fs::rename(&new, path));
    written.map_err(|error| {
        // What could not be written need not be there.
        let _ = std::fs::remove_file(&new);
        Fault::file(&format!("cannot write '{shown}'"), &error)
    })
}

/// Makes a directory and those above it that are missing; only the owner may enter (mode 0700).
///
/// # Errors
/// One cannot be made.
pub fn make_private_dir(path: &Path) -> Result<(), Fault> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| {
            let shown = printable(path.as_os_str().as_encoded_bytes());
            Fault::file(&format!("cannot make the directory '{shown}'"), &error)
        })
}

fn parse(line: &str) -> Result<Line, String> {
    let text = line.trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(Line::Comment(line.to_owned()));
    }
    let mut words = text.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some(key), None) if name.contains(':') => {
            let key = key.parse().map_err(|fault: Fault| fault.text)?;
            Ok(Line::Server(name.to_ascii_lowercase(), key))
        }
        _ => Err("it is not HOST:PORT and a key".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::PrivateKey;

    #[test]
    fn a_server_is_trusted_once_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/known_servers");
        let (one, two) = (
            PrivateKey::generate().unwrap().public(),
            PrivateKey::generate().unwrap().public(),
        );
        let mut known = Known::read(&path).unwrap();
        assert_eq!(known.keys("h", 1), []);
        known.trust("H.example", 4725, one).unwrap();
        known.trust("::1", 4725, two).unwrap();
        known.trust("h.example", 4725, two).unwrap();
        let mut known = Known::read(&path).unwrap();
        assert_eq!(known.keys("h.EXAMPLE", 4725), [two]);
        assert_eq!(known.keys("::1", 4725), [two]);
        assert_eq!(known.keys("h.example", 4726), []);
        assert!(known.forget("h.example", 4725).unwrap());
        assert!(!known.forget("h.example", 4725).unwrap());
        assert_eq!(Known::read(&path).unwrap().keys("h.example", 4725), []);
    }

    #[test]
    fn comments_stay_and_wrong_lines_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known_servers");
        std::fs::write(&path, "# mine\n\n").unwrap();
        let key = PrivateKey::generate().unwrap().public();
        Known::read(&path).unwrap().trust("h", 1, key).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# mine\n\nh:1 {key}\n"));
        for bad in ["h:1", "h haul1:x", "h:1 haul1:x", &format!("h:1 {key} x")] {
            std::fs::write(&path, format!("# one\n{bad}\n")).unwrap();
            let fault = Known::read(&path).unwrap_err();
            assert!(fault.text.contains("line 2"), "{fault}");
        }
    }
}
