//! A program that is run for each request. It reads JSON, and writes a line for each change of
//! state.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use haul_io::notify::Signal;
use haul_xsp::wire::PathState;

use super::request::{Action, Outcome, Patience, Request, outcome, state_of, words};

/// Longest line that is kept, bytes.
const LINE_BYTES_MAX: usize = 1 << 10;
/// Time for the program to exit after its final line.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Program {
    /// The program and its arguments; never empty.
    words: Vec<String>,
    timeout: Duration,
}

impl Program {
    pub(super) fn new(words: &[String], timeout: Duration) -> Result<Self, String> {
        if words.first().is_none_or(String::is_empty) {
            return Err("[path] of kind exec names no program".to_owned());
        }
        Ok(Self {
            words: words.to_vec(),
            timeout,
        })
    }

    /// Runs the program. Everything left in its process group is killed.
    pub(super) fn ask(
        &self,
        request: &Request,
        action: Action,
        end: &Signal,
        tell: &mut dyn FnMut(PathState, &str),
    ) -> Outcome {
        let mut child = match self.spawn(&request.octets(action)) {
            Ok(child) => child,
            Err(error) => {
                tell(PathState::Failed, &format!("{}: {error}", self.words[0]));
                return Outcome::Refused;
            }
        };
        let mut patience = Patience::new(end, self.timeout);
        let stdout = child.stdout.take();
        let said = stdout.and_then(|stdout| listen(stdout, action, &mut patience, tell));
        if said.is_none() && patience.left_ns() == 0 {
            let text = format!("{} timed out", self.words[0]);
            tell(PathState::Failed, &text);
        } else if said.is_none() && !patience.is_over() {
            let text = format!("{} exited without a final state", self.words[0]);
            tell(PathState::Failed, &text);
        }
        // If it fails, nothing is left to kill.
        let _ = haul_io::process::kill_group(&mut child);
        said.unwrap_or(Outcome::Unknown)
    }

    fn spawn(&self, asked: &[u8]) -> std::io::Result<Child> {
        Command::new(&self.words[0])
            .args(&self.words[1..])
            // A file, so that a program that does not read cannot block this thread.
            .stdin(haul_io::file::memory_file(asked)?)
            .stdout(Stdio::piped())
            .process_group(0)
            // The program is not a service of the service manager.
            .env_remove("NOTIFY_SOCKET")
            .spawn()
    }
}

/// Reports the program's lines until it exits. Returns the outcome of the request, if the program
/// reported one.
fn listen(
    mut stdout: ChildStdout,
    action: Action,
    patience: &mut Patience<'_>,
    tell: &mut dyn FnMut(PathState, &str),
) -> Option<Outcome> {
    let (mut line, mut said) = (Vec::new(), None);
    let mut octets = [0; 4096];
    while patience.wait_for(stdout.as_fd()) {
        // The pipe is readable. A read error counts as its end.
        let count = stdout.read(&mut octets).unwrap_or(0);
        let ends = if count == 0 {
            &b"\n"[..]
        } else {
            &octets[..count]
        };
        for octet in ends {
            if *octet != b'\n' {
                if line.len() < LINE_BYTES_MAX {
                    line.push(*octet);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            let (word, text) = text.split_once(' ').unwrap_or((&text, ""));
            let Some(state) = state_of(word.trim_end()).filter(|_| said.is_none()) else {
                continue;
            };
            tell(state, &words(text));
            said = outcome(action, state);
            if said.is_some() {
                patience.shorten(GRACE);
            }
        }
        if count == 0 {
            break;
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PathRule;
    use crate::path::request::tests::request;

    fn run(
        script: &str,
        action: Action,
        timeout: Duration,
        end: &Signal,
    ) -> (Outcome, Vec<(PathState, String)>) {
        let words = ["sh", "-c", script].map(str::to_owned);
        let program = Program::new(&words, timeout).unwrap();
        let mut heard = Vec::new();
        let outcome = program.ask(&request(), action, end, &mut |state, text| {
            heard.push((state, text.to_owned()));
        });
        (outcome, heard)
    }

    fn create(script: &str) -> (Outcome, Vec<(PathState, String)>) {
        run(
            script,
            Action::Create,
            Duration::from_secs(60),
            &Signal::new().unwrap(),
        )
    }

    #[test]
    fn it_reads_json_and_reports_the_state() {
        let script = "read -r line; echo noise; echo pending asked; echo \"up $line\"";
        let (outcome, heard) = create(script);
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(heard[0], (PathState::Pending, "asked".to_owned()));
        assert_eq!(heard[1].0, PathState::Up);
        let wanted =
            r#"{"version":1,"action":"create","gateway":"here","session":"0a","request":3,"#;
        assert!(heard[1].1.starts_with(wanted), "{heard:?}");
        assert_eq!(heard.len(), 2);
        let rules: Vec<PathRule> = vec!["vlan id=12".parse().unwrap()];
        assert_eq!(request().rules, rules);
    }

    #[test]
    fn its_answer_is_judged_by_the_request() {
        assert_eq!(create("printf up").0, Outcome::Done);
        assert_eq!(
            create("echo failed no capacity; echo up").0,
            Outcome::Refused
        );
        assert_eq!(create("echo down").0, Outcome::Refused);
        let never = Signal::new().unwrap();
        let delete = |script| run(script, Action::Delete, Duration::from_secs(60), &never).0;
        assert_eq!(delete("echo pending; echo down"), Outcome::Done);
        assert_eq!(delete("echo up"), Outcome::Refused);
    }

    #[test]
    fn a_program_without_a_final_state_leaves_it_open() {
        for script in ["true", "exit 3", "echo upper", "head -c 100000 /dev/zero"] {
            let (outcome, heard) = create(script);
            assert_eq!(outcome, Outcome::Unknown, "{script}");
            assert!(
                heard.last().unwrap().1.contains("without a final state"),
                "{heard:?}"
            );
        }
        let words = ["/nonexistent/program".to_owned()];
        let program = Program::new(&words, Duration::from_secs(60)).unwrap();
        let never = Signal::new().unwrap();
        let outcome = program.ask(&request(), Action::Create, &never, &mut |state, text| {
            assert!(state == PathState::Failed && text.contains("/nonexistent/program"));
        });
        assert_eq!(outcome, Outcome::Refused);
    }

    #[test]
    fn one_that_takes_too_long_is_ended_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {0}; wait", file.display());
        let never = Signal::new().unwrap();
        let (outcome, heard) = run(&script, Action::Create, Duration::from_secs(2), &never);
        assert_eq!(outcome, Outcome::Unknown);
        assert!(heard[0].1.contains("timed out"), "{heard:?}");
        let pid = std::fs::read_to_string(file).unwrap();
        // Gone, or a zombie whose parent has not reaped it yet.
        let is_gone = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.map_or(true, |state| {
                state.contains(") Z ") || state.contains(") X ")
            })
        };
        let mut waits = 0;
        while !is_gone() {
            waits += 1;
            assert!(waits < 1_000, "{} is still there", pid.trim());
            // Nothing sets the signal: this is a pause of 10 ms.
            let _ = haul_io::notify::wait_readable([never.as_fd()], Some(10_000_000));
        }
    }

    #[test]
    fn the_program_of_a_cancelled_request_is_ended_at_once() {
        let end = Signal::new().unwrap();
        end.set();
        let (outcome, heard) = run(
            "sleep 1000",
            Action::Create,
            Duration::from_secs(1000),
            &end,
        );
        assert_eq!((outcome, heard.len()), (Outcome::Unknown, 0));
    }

    #[test]
    fn one_that_stays_when_it_has_spoken_is_ended() {
        assert_eq!(create("echo up; sleep 1000").0, Outcome::Done);
    }
}
