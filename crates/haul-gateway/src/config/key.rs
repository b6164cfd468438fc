//! Keys shared with peers, read from files.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use haul_io::file;

use super::model::Key;

/// Length of a key, bytes.
const KEY_LEN: usize = 32;
/// Permission bits that a key file must not have: write for its group, all for others. The group
/// may read, because service managers pass secrets that way.
const MODE_REFUSED: u32 = 0o027;
/// Longest file with a secret, bytes.
const SECRET_MAX: u64 = 256 << 10;

/// States why a key is unusable.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key {}: {}", path.display(), haul_io::error::plain(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Others than the owner may read or write the file.
    #[error("others have rights to {path}; chmod 600 {path}", path = .0.display())]
    Exposed(PathBuf),
    /// The file holds something else.
    #[error("{path} is not 64 hexadecimal digits; make a key with openssl rand -hex 32", path = .0.display())]
    Malformed(PathBuf),
}

impl Key {
    /// Reads the key from its file.
    ///
    /// # Errors
    /// The file is missing, is open to others, or holds no key.
    pub fn read(&self) -> Result<[u8; KEY_LEN], KeyError> {
        let text = read_secret(&self.file)?;
        parse(text.trim_ascii()).ok_or_else(|| KeyError::Malformed(self.file.clone()))
    }
}

/// Reads a file that only its owner may use.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, KeyError> {
    let unreadable = |source| KeyError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let opened = file::open_source(path).map_err(unreadable)?;
    let metadata = file::metadata(&opened).map_err(unreadable)?;
    if metadata.mode & MODE_REFUSED != 0 {
        return Err(KeyError::Exposed(path.to_owned()));
    }
    let mut octets = Vec::new();
    opened
        .take(SECRET_MAX)
        .read_to_end(&mut octets)
        .map_err(unreadable)?;
    Ok(octets)
}

fn parse(digits: &[u8]) -> Option<[u8; KEY_LEN]> {
    let digit = |octet: u8| {
        char::from(octet)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut key = [0; KEY_LEN];
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    for (octet, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *octet = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_64_digits_and_nothing_else() {
        assert_eq!(parse("0F".repeat(32).as_bytes()), Some([15; 32]));
        for text in [
            "0f".repeat(31),
            "+f".repeat(32),
            "é".repeat(32),
            "0f".repeat(33),
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_key_that_others_may_read_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key {
            name: "peer".to_owned(),
            file: dir.path().join("key"),
            class: None,
        };
        assert!(matches!(key.read(), Err(KeyError::Unreadable { .. })));
        fs::write(&key.file, format!("{}\n", "ab".repeat(32))).unwrap();
        let read = |mode| {
            fs::set_permissions(&key.file, Permissions::from_mode(mode)).unwrap();
            key.read()
        };
        for mode in [0o600, 0o400, 0o440] {
            assert_eq!(read(mode).unwrap(), [0xab; 32], "{mode:o}");
        }
        for mode in [0o644, 0o660, 0o601] {
            assert!(matches!(read(mode), Err(KeyError::Exposed(_))), "{mode:o}");
        }
        fs::write(&key.file, "secret").unwrap();
        assert!(matches!(read(0o600), Err(KeyError::Malformed(_))));
    }
}
