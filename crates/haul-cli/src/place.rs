//! Where files are: a user's keys in ~/.config/haul, those of root's server in /etc/haul, what
//! transfers remember in ~/.local/state/haul.

use std::env::var_os;
use std::path::{Path, PathBuf};

use haul::fault::{Code, Fault};
use haul::printable;
use haul_control::identity::PrivateKey;
use haul_control::known::{Known, make_private_dir};

use crate::output::tell;

/// File name of a private key.
pub(crate) const KEY: &str = "key.pem";
/// File name of a server's clients.
pub(crate) const AUTHORIZED: &str = "authorized_keys";
/// File name of a client's servers.
const KNOWN: &str = "known_servers";

/// Returns the directory that a variable names, or this one of the home directory.
fn base(variable: &str, default: &str) -> Option<PathBuf> {
    let set = |variable| var_os(variable).filter(|value| !value.is_empty());
    let named = set(variable).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(set("HOME")?).join(default)))
}

/// Returns the path of the file in which transfers keep the rates of their paths.
pub(crate) fn paths() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state").map(|state| state.join("haul/paths"))
}

/// Returns the directory of a user's data, such as completions.
pub(crate) fn data() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share")
}

/// Returns the directory of a user's configuration, of all programs.
pub(crate) fn config() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config")
}

/// Returns the paths of the configuration files: this host's, then the user's, whose values have
/// precedence; `HAUL_CONFIG` names another one in place of both.
pub(crate) fn configurations() -> Vec<PathBuf> {
    if let Some(file) = var_os("HAUL_CONFIG") {
        return vec![file.into()];
    }
    let users = config().map(|config| config.join("haul/config.toml"));
    let of_host = PathBuf::from("/etc/haul/config.toml");
    std::iter::once(of_host).chain(users).collect()
}

/// Returns the path of the file in which deletions keep the file systems of their sources.
pub(crate) fn sync() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state").map(|state| state.join("haul/sync"))
}

/// Returns the path of a client's file.
pub(crate) fn of_client(name: &str) -> Result<PathBuf, Fault> {
    let config = config().ok_or_else(|| {
        Fault::new(
            Code::Usage,
            "there is no home directory for keys (HOME is not set)",
        )
        .hint("name the file on the command line")
    })?;
    Ok(config.join("haul").join(name))
}

/// Returns the path of a server's file.
pub(crate) fn of_server(name: &str) -> Result<PathBuf, Fault> {
    if haul::is_root() {
        return Ok(PathBuf::from("/etc/haul").join(name));
    }
    of_client(name)
}

/// Reads the servers that the user's clients know.
pub(crate) fn known_servers() -> Result<Known, Fault> {
    Known::read(&of_client(KNOWN)?)
}

/// Reads the key of this path, or makes one there and tells so.
pub(crate) fn find_or_make(path: &Path) -> Result<PrivateKey, Fault> {
    match PrivateKey::read(path) {
        Err(fault) if fault.code == Code::FileNotFound => {}
        result => return result,
    }
    if let Some(parent) = path.parent() {
        make_private_dir(parent)?;
    }
    let key = PrivateKey::generate()?;
    key.write(path)?;
    tell(&format!(
        "made the key '{}'",
        printable(path.as_os_str().as_encoded_bytes())
    ));
    Ok(key)
}
