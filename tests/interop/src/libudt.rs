//! libudt's sender and receiver as child processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// Where the programs are; none where they cannot be built, which is then said in one line that
/// counts as a skipped test.
pub fn programs() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/libudt");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
        let done = Command::new(script).arg(&out).output();
        let done = done.map_err(|error| format!("build.sh does not run: {error}"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        match done.status.code() {
            Some(0) => Ok(out),
            Some(77) => Err(said.trim().to_owned()),
            _ => panic!("the libudt peers do not build:\n{said}"),
        }
    });
    match built {
        Ok(path) => Some(path),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

/// A program that runs; killed when dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `program` with `arguments`, which end by themselves after a minute.
    pub fn start(program: &Path, arguments: &str) -> Self {
        let mut child = Command::new(program)
            .args(arguments.split(' ').filter(|word| !word.is_empty()))
            .args(["--timeout", "60"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it was built");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, stdout }
    }

    /// The rest of the next line, which begins with `word`.
    pub fn line(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it is text");
        let rest = line.trim().strip_prefix(word);
        let Some(rest) = rest else {
            panic!("expected a line '{word} …', found '{}'", line.trim());
        };
        rest.trim().to_owned()
    }

    /// Waits for the end: exit code and standard error.
    pub fn end(mut self) -> (i32, String) {
        let status = self.child.wait().expect("it was started");
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
        }
        (status.code().unwrap_or(-1), said)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
