//! The authorised keys of a standing server: which identity may do what, one to a line.
//!
//! ```text
//! haul1:…  directory=alice rights=read,write rate=1Gbit expires=2027-01-31 label=alice@laptop
//! name:backup.example.org  rights=write
//! ```
//!
//! A line that cannot be read makes the whole file unusable: a restriction with a typing error must
//! not become a permission.

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use haul_report::quantity::Rate;

use crate::fault::{Code, Fault};
use crate::identity::{PeerIdentity, PublicKey};
use crate::printable;
use crate::trust::{Refusal, Rights};

/// Maximum size of the file, bytes.
const FILE_MAX: u64 = 4 << 20;
/// Seconds of a day.
const DAY: u64 = 86_400;

/// The clients that a server knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authorized {
    entries: Vec<Entry>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    who: Who,
    rights: Rights,
    /// The date as the line has it, for messages.
    expiry: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Key(PublicKey),
    /// A DNS name or common name of a certificate, in lower case.
    Name(String),
}

impl Authorized {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, others than its owner may write it, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        use std::io::Read as _;
        use std::os::unix::fs::PermissionsExt as _;

        let shown = printable(path.as_os_str().as_encoded_bytes());
        let failed = |error| Fault::file(&format!("cannot read '{shown}'"), &error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o022 != 0 {
            let text = format!("other users may write '{shown}', which decides who has access");
            return Err(Fault::new(Code::Denied, text).hint(format!("chmod go-w '{shown}'")));
        }
        let mut text = String::new();
        file.take(FILE_MAX + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        if text.len() as u64 > FILE_MAX {
            // A line without its end could have more rights.
            let text = format!("'{shown}' is longer than {} MiB", FILE_MAX >> 20);
            return Err(Fault::new(Code::Usage, text).hint("remove lines that are not needed"));
        }
        Self::parse(&text).map_err(|fault| Fault {
            text: format!("'{shown}', {}", fault.text),
            ..fault
        })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let wrong = |why: String| {
                Fault::new(Code::Usage, format!("line {number}: {why}"))
                    .hint("write IDENTITY OPTION=VALUE …, as docs/operating.md describes")
            };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = parse_line(line).map_err(wrong)?;
            if entries.iter().any(|other| other.who == entry.who) {
                return Err(wrong("the identity is in the file twice".to_owned()));
            }
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// Returns how many identities it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether it admits nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Decides what a client may do at this time.
    ///
    /// # Errors
    /// Why it is not admitted, with what to do.
    pub fn admit(&self, peer: &PeerIdentity, now: SystemTime) -> Result<Rights, Refusal> {
        let refuse = |text: String, hint: String| {
            Err(Refusal {
                text,
                hint: Some(hint),
            })
        };
        let is_peer = |entry: &&Entry| match (&entry.who, peer) {
            (Who::Key(key), PeerIdentity::Key(peer)) => key == peer,
            (Who::Name(name), PeerIdentity::Certificate { subject, sans }) => {
                // A certificate with DNS names is not identified by its subject (RFC 6125).
                let names = if sans.is_empty() {
                    std::slice::from_ref(subject)
                } else {
                    sans
                };
                names.iter().any(|other| other.eq_ignore_ascii_case(name))
            }
            _ => false,
        };
        let Some(entry) = self.entries.iter().find(is_peer) else {
            return match peer {
                PeerIdentity::Anonymous => refuse(
                    "the server admits only clients that have a key".to_owned(),
                    "make one with 'haul key new', and have its public key added to the server's \
                     authorised keys"
                        .to_owned(),
                ),
                peer => refuse(
                    format!("the server does not know {peer}"),
                    "have it added to the server's authorised keys, and the server reloaded \
                     (SIGHUP)"
                        .to_owned(),
                ),
            };
        };
        match (entry.rights.expires, &entry.expiry) {
            (Some(end), expiry) if now >= end => refuse(
                format!(
                    "the access of {peer} expired with {}",
                    expiry.as_deref().unwrap_or("its date")
                ),
                "have its line in the server's authorised keys renewed; or check the server's clock"
                    .to_owned(),
            ),
            _ => Ok(entry.rights.clone()),
        }
    }
}

/// Parses one line that is not empty.
fn parse_line(line: &str) -> Result<Entry, String> {
    let mut words = words(line)?.into_iter();
    let identity = words.next().unwrap_or_default();
    let who = match identity.strip_prefix("name:") {
        Some(name) if !name.is_empty() => Who::Name(name.to_ascii_lowercase()),
        Some(_) => return Err("name: has no name behind it".to_owned()),
        None => Who::Key(identity.parse().map_err(|fault: Fault| fault.text)?),
    };
    let mut rights = Rights {
        bench: false,
        plain: false,
        ..Rights::all(&identity)
    };
    let mut expiry = None;
    let mut seen: Vec<String> = Vec::new();
    for word in words {
        let (option, value) = word
            .split_once('=')
            .ok_or_else(|| format!("'{}' is not OPTION=VALUE", printable(word.as_bytes())))?;
        if seen.iter().any(|other| other == option) {
            return Err(format!("{option} is there twice"));
        }
        seen.push(option.to_owned());
        match option {
            "directory" => rights.directory = directory(value)?,
            "rights" => set_rights(&mut rights, value)?,
            "rate" => rights.rate_bps = Some(Rate::parse(value)?.bps),
            "expires" => {
                rights.expires = Some(end_of_day(value)?);
                expiry = Some(value.to_owned());
            }
            "label" => rights.name = format!("{} ({identity})", printable(value.as_bytes())),
            _ => {
                return Err(format!(
                    "there is no option '{}'",
                    printable(option.as_bytes())
                ));
            }
        }
    }
    Ok(Entry {
        who,
        rights,
        expiry,
    })
}

/// Splits a line at blanks, outside of double quotes.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if c.is_whitespace() && !is_quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if is_quoted {
        return Err("a quote is not closed".to_owned());
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

fn directory(value: &str) -> Result<PathBuf, String> {
    let path = Path::new(value);
    let is_below = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if is_below && !value.is_empty() && !value.contains('\0') {
        return Ok(path.to_owned());
    }
    Err(format!(
        "directory '{}' is not one below the served directory",
        printable(value.as_bytes())
    ))
}

fn set_rights(rights: &mut Rights, value: &str) -> Result<(), String> {
    (rights.read, rights.write) = (false, false);
    for right in value.split(',') {
        match right {
            "read" => rights.read = true,
            "write" => rights.write = true,
            "bench" => rights.bench = true,
            "plain" => rights.plain = true,
            _ => {
                return Err(format!(
                    "there is no right '{}'; there are read, write, bench and plain",
                    printable(right.as_bytes())
                ));
            }
        }
    }
    Ok(())
}

/// Returns the end of a day in UTC, which `2027-01-31` names.
fn end_of_day(value: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{}' is no date as 2027-01-31", printable(value.as_bytes()));
    let parts: Vec<&str> = value.split('-').collect();
    let &[year, month, day] = parts.as_slice() else {
        return Err(wrong());
    };
    let number = |text: &str, len: usize| {
        let is_decimal = text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_decimal)
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2))
    else {
        return Err(wrong());
    };
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let length = |month: u64| match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if year < 1970 || !(1..=12).contains(&month) || !(1..=length(month)).contains(&day) {
        return Err(wrong());
    }
    let years: u64 = (1970..year)
        .map(|year| 365 + u64::from(is_leap(year)))
        .sum();
    let days = years + (1..month).map(length).sum::<u64>() + day;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::identity::PrivateKey;

    #[test]
    fn a_file_that_is_too_long_is_refused_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized_keys");
        let comments = "# \n".repeat(usize::try_from(FILE_MAX).unwrap() / 3 + 1);
        std::fs::write(&path, comments).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let fault = Authorized::read(&path).unwrap_err();
        assert!(fault.text.contains("is longer than 4 MiB"), "{fault}");
    }

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_line_limits_what_an_identity_may_do() {
        let (alice, bob, eve) = (key(), key(), key());
        let text = format!(
            "# who\n\n{alice} directory=\"alice's data/in\" rights=write rate=1Gbit \
             expires=1970-01-02 label=alice@laptop\n  {bob}\n"
        );
        let file = Authorized::parse(&text).unwrap();
        assert_eq!(file.len(), 2);
        let rights = file.admit(&PeerIdentity::Key(alice), at(0)).unwrap();
        assert_eq!(rights.directory, Path::new("alice's data/in"));
        assert!(rights.write && !rights.read && !rights.bench && !rights.plain);
        assert_eq!(rights.rate_bps, Some(1_000_000_000));
        assert_eq!(rights.name, format!("alice@laptop ({alice})"));
        let rights = file.admit(&PeerIdentity::Key(bob), at(0)).unwrap();
        assert!(rights.write && rights.read && !rights.bench && !rights.plain);
        // The last second of the day, and the first one after it.
        let alice = PeerIdentity::Key(alice);
        assert!(file.admit(&alice, at(2 * DAY - 1)).is_ok());
        let refusal = file.admit(&alice, at(2 * DAY)).unwrap_err();
        assert!(
            refusal.text.contains("expired with 1970-01-02"),
            "{refusal:?}"
        );
        let refusal = file.admit(&PeerIdentity::Key(eve), at(0)).unwrap_err();
        assert!(refusal.text.contains(&eve.to_string()), "{refusal:?}");
        let refusal = file.admit(&PeerIdentity::Anonymous, at(0)).unwrap_err();
        assert!(refusal.text.contains("only clients that have a key"));
    }

    #[test]
    fn a_certificate_is_known_by_its_names() {
        let file = Authorized::parse("name:Backup.Example.org rights=read\n").unwrap();
        let certificate = |subject: &str, sans: &[&str]| PeerIdentity::Certificate {
            subject: subject.to_owned(),
            sans: sans.iter().map(|san| (*san).to_owned()).collect(),
        };
        let admit = |peer| file.admit(&peer, at(0)).is_ok();
        assert!(admit(certificate(
            "x",
            &["a.example", "backup.example.ORG"]
        )));
        assert!(admit(certificate("backup.example.org", &[])));
        // A name that a certificate carries beside DNS names proves nothing.
        assert!(!admit(certificate(
            "backup.example.org",
            &["other.example"]
        )));
        assert!(!admit(certificate("other", &[])));
        assert!(!admit(PeerIdentity::Anonymous));
    }

    #[test]
    fn a_line_that_is_not_understood_makes_the_file_unusable() {
        let key = key();
        for (line, why) in [
            ("haul1:short".to_owned(), "not a public key"),
            ("name:".to_owned(), "has no name"),
            (format!("{key} right=read"), "no option 'right'"),
            (format!("{key} rights=reed"), "no right 'reed'"),
            (format!("{key} rights="), "no right ''"),
            (format!("{key} directory=../x"), "not one below"),
            (format!("{key} directory=/x"), "not one below"),
            (format!("{key} directory="), "not one below"),
            (format!("{key} directory=\"a b"), "not closed"),
            (format!("{key} rate=1Gb"), "not a rate"),
            (format!("{key} expires=2027-02-29"), "no date"),
            (format!("{key} expires=2027-1-31"), "no date"),
            (format!("{key} expires=+027-01-31"), "no date"),
            (format!("{key} read"), "not OPTION=VALUE"),
            (format!("{key} rate=1Gbit rate=1Gbit"), "twice"),
            (format!("{key}\n{key}"), "twice"),
        ] {
            let fault = Authorized::parse(&line).unwrap_err();
            assert!(fault.text.contains(why), "{line}: {fault}");
            assert!(fault.text.starts_with("line "), "{fault}");
        }
        assert!(Authorized::parse(&format!("{key} expires=2028-02-29")).is_ok());
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized_keys");
        std::fs::write(&path, format!("{}\n", key())).unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        set(0o644);
        assert_eq!(Authorized::read(&path).unwrap().len(), 1);
        set(0o664);
        assert_eq!(Authorized::read(&path).unwrap_err().code, Code::Denied);
        set(0o644);
        std::fs::write(&path, "x").unwrap();
        let fault = Authorized::read(&path).unwrap_err();
        assert!(fault.text.contains("authorized_keys', line 1"), "{fault}");
    }
}
