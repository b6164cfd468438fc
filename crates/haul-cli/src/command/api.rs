//! `haul api`: attributes, listings and ranges of files for one application, by framed messages on
//! the standard streams. docs/python.md describes them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul::client::{Config, Kind, Range, Reads};
use haul::fault::{Code, Fault};
use haul::fs::path::Relative;
use haul::listing::client::{Found, Request, Session};
use serde::Deserialize;
use serde_json::{Value, json};

use super::transfer::{self, explain};
use super::{fail, list};
use crate::args::Api;
use crate::operand::Remote;
use crate::output;

/// Maximum header of a message, bytes.
const HEADER_MAX: usize = 1 << 20;
/// Requests that run at a time.
const RUNNING_MAX: usize = 256;
/// Entries of a listing in one message.
const ENTRIES: usize = 1000;
/// A session that was not used for this long is closed: a server has a limited number of them.
const IDLE: Duration = Duration::from_secs(60);

/// A message of the application.
#[derive(Debug, Deserialize)]
struct Asked {
    id: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum What {
    Stat {
        at: String,
    },
    Ls {
        at: String,
        #[serde(default)]
        recursive: bool,
    },
    Read {
        at: String,
        offset: u64,
        length: u64,
        size: u64,
        modified_s: i64,
        modified_ns: u32,
    },
    /// The request of this id ends with an error.
    Cancel,
}

/// Serves the application until it closes the standard input.
pub(crate) fn run(args: Api) -> ExitCode {
    let service = Arc::new(Service {
        args,
        hosts: Mutex::default(),
        running: Mutex::default(),
        stdout: Mutex::new(()),
    });
    let tidy = Arc::downgrade(&service);
    let resting = std::thread::Builder::new().spawn(move || {
        while let Some(service) = tidy.upgrade() {
            let hosts: Vec<_> = lock(&service.hosts).values().cloned().collect();
            for entry in &hosts {
                // A host that is being reached has no session.
                let host = entry.try_lock().ok().and_then(|entry| entry.host.clone());
                if let Some(host) = host {
                    host.reads.rest(IDLE);
                }
            }
            drop((hosts, service));
            std::thread::sleep(IDLE / 6);
        }
    });
    let served = resting
        .map_err(|error| Fault::system(&error))
        .and_then(|_| service.serve());
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

/// A host, reached as the command line says.
struct Host {
    config: Config,
    reads: Reads,
}

/// A host that was named.
#[derive(Default)]
struct HostEntry {
    host: Option<Arc<Host>>,
    /// When the latest attempt to find it failed, and why.
    failed: Option<(Instant, Fault)>,
}

struct Service {
    args: Api,
    /// Each is held while one thread makes the way to it: a login may take a while.
    hosts: Mutex<HashMap<String, Arc<Mutex<HostEntry>>>>,
    /// Requests that run, and whether they were cancelled.
    running: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    /// Held for each message.
    stdout: Mutex<()>,
}

impl Service {
    fn serve(self: &Arc<Self>) -> Result<(), Fault> {
        let mut stdin = io::stdin().lock();
        while let Some(asked) = receive(&mut stdin)? {
            let Asked { id, what } = asked;
            if let What::Cancel = what {
                if let Some(flag) = lock(&self.running).get(&id) {
                    flag.store(true, Ordering::Release);
                }
                continue;
            }
            let cancelled = Arc::new(AtomicBool::new(false));
            {
                let mut running = lock(&self.running);
                if running.contains_key(&id) || running.len() >= RUNNING_MAX {
                    drop(running);
                    let fault = Fault::new(Code::Usage, "too many requests, or an id used twice");
                    self.end(id, Err(&fault))?;
                    continue;
                }
                running.insert(id, Arc::clone(&cancelled));
            }
            let service = Arc::clone(self);
            let work = move || {
                let result = service.answer(id, &what, &cancelled);
                lock(&service.running).remove(&id);
                if service.end(id, result.as_ref()).is_err() {
                    // The application has gone.
                    std::process::exit(1);
                }
            };
            let spawned = std::thread::Builder::new().spawn(work);
            if let Err(error) = spawned {
                lock(&self.running).remove(&id);
                self.end(id, Err(&Fault::system(&error)))?;
            }
        }
        Ok(())
    }

    fn answer(&self, id: u64, what: &What, cancelled: &AtomicBool) -> Result<Value, Fault> {
        let check = || match cancelled.load(Ordering::Acquire) {
            true => Err(Fault::new(Code::Other, "cancelled")),
            false => Ok(()),
        };
        match what {
            What::Cancel => Ok(json!({})),
            What::Stat { at } => {
                let (remote, host) = self.host(at)?;
                let found = host.reads.stat(&remote.path);
                let stat = found.map_err(|fault| explain(fault, &host.config, &remote))?;
                let kind = match stat.kind {
                    Kind::File => "file",
                    Kind::Directory => "directory",
                    Kind::Special => "special",
                };
                Ok(json!({
                    "kind": kind, "size": stat.size, "mode": stat.mode,
                    "modified_s": stat.modified.seconds, "modified_ns": stat.modified.nanos,
                }))
            }
            What::Ls { at, recursive } => {
                let (remote, host) = self.host(at)?;
                let request = Request {
                    path: remote.path.clone(),
                    is_recursive: *recursive,
                    ..Request::default()
                };
                let (mut has_sent, mut failures) = (false, 0);
                let listed = loop {
                    let listed = self.list(id, &request, &host.reads, &check, &mut has_sent);
                    match listed {
                        Err(fault) if !has_sent => {
                            let failed = (Instant::now(), fault);
                            if let Err(fault) = host.reads.recover(failed, &mut failures) {
                                break Err(fault);
                            }
                        }
                        listed => break listed,
                    }
                };
                listed.map_err(|fault| explain(fault, &host.config, &remote))
            }
            What::Read {
                at,
                offset,
                length,
                size,
                modified_s,
                modified_ns,
            } => {
                let (remote, host) = self.host(at)?;
                let range = Range {
                    path: remote.path.clone(),
                    offset: *offset,
                    length: *length,
                    size: *size,
                    modified: haul::FileTime {
                        seconds: *modified_s,
                        nanos: *modified_ns,
                    },
                };
                let read = host.reads.read(&range, &mut |bytes| {
                    check()?;
                    self.send(&json!({ "id": id }), &bytes)
                });
                read.map_err(|fault| explain(fault, &host.config, &remote))?;
                Ok(json!({}))
            }
        }
    }

    fn host(&self, at: &str) -> Result<(Remote, Arc<Host>), Fault> {
        let remote = Remote::parse(OsStr::new(at))?;
        let entry = Arc::clone(lock(&self.hosts).entry(remote.host()).or_default());
        let asked_at = Instant::now();
        let mut entry = lock(&entry);
        if let Some(host) = &entry.host {
            return Ok((remote, Arc::clone(host)));
        }
        if let Some((at, fault)) = &entry.failed
            && *at >= asked_at
        {
            // Another request has found out meanwhile.
            return Err(fault.clone());
        }
        let prepared = list::prepared(
            &transfer::Reach {
                path: &self.args.path,
                trust: &self.args.trust,
                ssh: &self.args.ssh,
                through: &self.args.through,
                give_up_after: None,
                bwlimit: None,
                is_quiet: true,
            },
            &remote,
        );
        let config = match prepared {
            Ok(config) => config,
            Err(fault) => {
                entry.failed = Some((Instant::now(), fault.clone()));
                return Err(fault);
            }
        };
        let host = Arc::new(Host {
            reads: Reads::new(config.clone()),
            config,
        });
        entry.host = Some(Arc::clone(&host));
        Ok((remote, host))
    }

    /// Lists once. Sets `has_sent` before the first entries are sent to the application.
    fn list(
        &self,
        id: u64,
        request: &Request,
        reads: &Reads,
        check: &dyn Fn() -> Result<(), Fault>,
        has_sent: &mut bool,
    ) -> Result<Value, Fault> {
        check()?;
        let session = Session::open(&reads.config(), request)?;
        let (mut entries, mut failures) = (Vec::new(), Vec::new());
        session.list(|found| {
            check()?;
            match found {
                Found::Entry(mut entry, _) => {
                    if entry.path.is_root() {
                        // The operand is a file.
                        let name = request.path.rsplit(|byte| *byte == b'/').next();
                        entry.path = Relative::new(name.unwrap_or_default())?;
                    }
                    entries.push(output::list::entry_object(&entry));
                }
                Found::Failed { text, .. } => failures.push(text),
            }
            if entries.len() < ENTRIES {
                return Ok(());
            }
            let entries = std::mem::take(&mut entries);
            *has_sent = true;
            self.send(&json!({ "id": id, "entries": entries }), &[])
        })?;
        *has_sent = true;
        self.send(&json!({ "id": id, "entries": entries }), &[])?;
        Ok(json!({ "failed": failures }))
    }

    /// Sends the last message of a request.
    fn end(&self, id: u64, result: Result<&Value, &Fault>) -> Result<(), Fault> {
        let message = match result {
            Ok(result) => json!({ "id": id, "ok": true, "result": result }),
            Err(fault) => json!({ "id": id, "ok": false, "error": output::error(fault) }),
        };
        self.send(&message, &[])
    }

    fn send(&self, header: &Value, payload: &[u8]) -> Result<(), Fault> {
        let header = header.to_string();
        let _one_at_a_time = lock(&self.stdout);
        let write = || {
            let mut stdout = io::stdout().lock();
            for len in [header.len(), payload.len()] {
                let len = u32::try_from(len).map_err(io::Error::other)?;
                stdout.write_all(&len.to_be_bytes())?;
            }
            stdout.write_all(header.as_bytes())?;
            stdout.write_all(payload)?;
            stdout.flush()
        };
        write().map_err(|error| {
            let text = format!("cannot write to standard output: {error}");
            Fault::new(Code::Other, text)
        })
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives a message; `None` at the end of the input. Requests have no payload.
fn receive(input: &mut impl io::Read) -> Result<Option<Asked>, Fault> {
    let wrong = |text: String| Fault::new(Code::Usage, format!("standard input: {text}"));
    let unread = |error: io::Error| wrong(error.to_string());
    let mut lengths = [0; 8];
    if input.read(&mut lengths[..1]).map_err(unread)? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut lengths[1..]).map_err(unread)?;
    let [a, b, c, d, payload @ ..] = lengths;
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > HEADER_MAX || payload != [0; 4] {
        return Err(wrong("a message is too long".into()));
    }
    let mut header = vec![0; len];
    input.read_exact(&mut header).map_err(unread)?;
    let asked = serde_json::from_slice(&header);
    asked.map(Some).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(header: &str, payload: u32) -> Vec<u8> {
        let len = u32::try_from(header.len()).unwrap();
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend(payload.to_be_bytes());
        bytes.extend(header.as_bytes());
        bytes
    }

    #[test]
    fn messages_are_read_one_after_another_and_wrong_ones_refused() {
        let stat = message(r#"{"id":7,"do":"stat","at":"haul://host/f"}"#, 0);
        let cancel = message(r#"{"id":7,"do":"cancel"}"#, 0);
        let both = [stat.clone(), cancel].concat();
        let mut input = &both[..];
        let first = receive(&mut input).unwrap().unwrap();
        assert!(matches!(first, Asked { id: 7, what: What::Stat { at } } if at == "haul://host/f"));
        let second = receive(&mut input).unwrap().unwrap();
        assert!(matches!(second.what, What::Cancel));
        assert!(receive(&mut input).unwrap().is_none());
        for wrong in [
            &stat[..5],
            &stat[..stat.len() - 1],
            &message("{}", 0),
            &message(r#"{"id":1,"do":"format"}"#, 0),
            &message(r#"{"id":-1,"do":"cancel"}"#, 0),
            &message(r#"{"id":1,"do":"cancel"}"#, 1),
            &u64::MAX.to_be_bytes(),
        ] {
            let mut input = wrong;
            assert_eq!(receive(&mut input).unwrap_err().code, Code::Usage);
        }
    }
}
