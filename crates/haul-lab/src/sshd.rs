//! An OpenSSH server on a host of a lab, with keys of its own and for this user only. Nothing of
//! the machine's own server is used or changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::compare::programs::in_path;
use crate::compare::runner::{Runner, Running, Stop, spawn};
use crate::lab::Lab;

/// Where it listens.
pub(crate) const PORT: u16 = 2222;
/// Time for the server to start.
const READY: Duration = Duration::from_secs(20);

/// A server that listens, until it is dropped with its lab.
#[derive(Debug)]
pub(crate) struct Sshd {
    _server: Running,
}

/// The server's program.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    /// The directory of its libraries, where it is unpacked and not installed.
    libraries: Option<PathBuf>,
}

/// Why there can be no server here, if so.
pub(crate) fn missing() -> Option<String> {
    let client = ["ssh", "ssh-keygen"]
        .into_iter()
        .find(|name| in_path(name).is_none());
    if let Some(name) = client {
        return Some(format!("not installed: {name}"));
    }
    if program().is_none() {
        return Some("not installed: sshd (scripts/sshd.sh target/sshd unpacks one)".into());
    }
    let is_root = haul_io::process::is_root() && !is_in_user_namespace();
    (!is_root).then(|| "needs root: sshd".into())
}

/// Whether this process has the rights of root only over what it made itself.
fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().nth(2) != Some("4294967295")
}

/// The installed server, or the one that scripts/sshd.sh unpacked beside this program.
fn program() -> Option<Program> {
    let installed = Path::new("/usr/sbin/sshd");
    if installed.is_file() {
        let (path, libraries) = (installed.to_path_buf(), None);
        return Some(Program { path, libraries });
    }
    let own = std::env::current_exe().ok()?;
    let mut roots = own
        .ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join("sshd"));
    let root = roots.find(|root| root.join("usr/sbin/sshd").is_file())?;
    let libraries = std::fs::read_dir(root.join("usr/lib")).ok()?.flatten();
    let mut libraries = libraries.map(|entry| entry.path());
    Some(Program {
        path: root.join("usr/sbin/sshd"),
        libraries: libraries.find(|path| path.join("libwrap.so.0").exists()),
    })
}

impl Sshd {
    /// Makes keys in `folder`, starts the server on a host and waits until it listens.
    /// [`client_config`] makes `ssh` reach it.
    pub(crate) fn start(
        runner: &Runner<'_>,
        lab: &Lab,
        host: &str,
        folder: &Path,
    ) -> Result<Self, Stop> {
        let program = program().context("not installed: sshd")?;
        let key = folder.join("ssh_key");
        if !key.exists() {
            let mut command = Command::new("ssh-keygen");
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&key);
            let output = command.output().context("cannot run ssh-keygen")?;
            let why = String::from_utf8_lossy(&output.stderr);
            ensure_ok(output.status.success(), why.trim())?;
        }
        let (key, config) = (key.display(), folder.join("sshd_config"));
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
        let text = format!(
            "Port {PORT}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\nPermitRootLogin yes\n\
             StrictModes no\nUsePAM no\nUseDNS no\nPidFile none\nMaxStartups 100\n\
             SetEnv PATH={path}\nSubsystem sftp internal-sftp\n"
        );
        std::fs::write(&config, text).context("cannot write the configuration of sshd")?;
        std::fs::write(client_config(folder), client_text(&key.to_string()))
            .context("cannot write the configuration of ssh")?;
        let line = command_line(&program, &config, &folder.join("passwd"));
        let mut server = spawn(lab, host, &line)?;
        runner.listening_within(lab, host, PORT, &mut server, READY)?;
        Ok(Self { _server: server })
    }
}

fn ensure_ok(is_right: bool, why: &str) -> Result<()> {
    ensure!(is_right, "ssh-keygen failed: {why}");
    Ok(())
}

/// The file for `ssh -F`: every host is reached at the server's port, with the key made for it.
pub(crate) fn client_config(folder: &Path) -> PathBuf {
    folder.join("ssh_config")
}

fn client_text(key: &str) -> String {
    format!(
        "Host *\n Port {PORT}\n User root\n IdentityFile {key}\n IdentitiesOnly yes\n BatchMode yes\n \
         StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
}

/// sshd needs a directory and a user of its own. What is mounted is visible to it alone.
fn command_line(program: &Program, config: &Path, passwd: &Path) -> Vec<OsString> {
    const SCRIPT: &str = r#"
passwd=$1
shift
mkdir -p /run/sshd
if ! grep -q ^sshd: /etc/passwd; then
  { cat /etc/passwd; echo sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin; } >"$passwd"
  mount --bind "$passwd" /etc/passwd
fi
exec "$@"
"#;
    let mut line: Vec<OsString> = vec!["sh".into(), "-ec".into(), SCRIPT.into(), "sshd".into()];
    line.push(passwd.into());
    if let Some(libraries) = &program.libraries {
        let mut variable = OsString::from("LD_LIBRARY_PATH=");
        variable.push(libraries);
        line.extend(["env".into(), variable]);
    }
    line.extend([program.path.clone().into(), "-D".into(), "-e".into()]);
    line.extend(["-f".into(), config.into()]);
    line
}
