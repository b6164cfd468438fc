//! The access log: one line for each application's connection, when it has ended or was refused.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_io::clock::Clock;
use haul_io::file;
use haul_report::date;
use haul_xsp::{SECOND_NS, Time};
use serde::Serialize;

use crate::config::{AccessFormat, AccessLog};
use crate::refusal::meaning;

/// Lines that wait to be written; further ones are lost, and counted.
const WAITING_MAX: usize = 4_096;

/// An application's connection that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The address of the client, or the requester of the connection.
    pub(crate) client: String,
    /// The name of the gateway that the client connected to, as that gateway states it.
    pub(crate) gateway: Option<String>,
    /// The authenticated identity of the session's owner.
    pub(crate) identity: Option<String>,
    pub(crate) target: String,
    /// Bytes from the application here, and to it.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) began: Time,
    pub(crate) ended: Time,
    pub(crate) outcome: Outcome,
}

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both directions have ended in order.
    Done,
    /// One side has broken it off, or its session has ended.
    Reset,
    /// It was not made: the code of a `NackStatus`, or a Linux errno.
    Refused(u16),
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Reset => "reset",
            Self::Refused(status) => meaning(status).name,
        }
    }
}

/// A record as it is written; absent values are left out of the text, and `null` in JSON.
#[derive(Debug, Serialize)]
struct Record<'a> {
    date: String,
    client: &'a str,
    gateway: Option<&'a str>,
    identity: Option<&'a str>,
    target: &'a str,
    bytes_received: u64,
    bytes_sent: u64,
    seconds: f64,
    result: &'static str,
}

impl Access {
    fn line(&self, format: AccessFormat, now: Time, realtime_ns: u64) -> String {
        let since = |from: Time, to: Time| to.as_ns().saturating_sub(from.as_ns());
        let record = Record {
            date: date::millis(realtime_ns.saturating_sub(since(self.ended, now))),
            client: &self.client,
            gateway: self.gateway.as_deref(),
            identity: self.identity.as_deref(),
            target: &self.target,
            bytes_received: self.received,
            bytes_sent: self.sent,
            seconds: (since(self.began, self.ended) / (SECOND_NS / 1_000)) as f64 / 1e3,
            result: self.outcome.name(),
        };
        match format {
            AccessFormat::Text => record.text(),
            // Plain fields always serialize.
            AccessFormat::Json => serde_json::to_string(&record).unwrap_or_default(),
        }
    }
}

impl Record<'_> {
    /// Formats `key=value` pairs; a value with other characters than those of names and addresses
    /// is quoted.
    fn text(&self) -> String {
        let mut text = self.date.clone();
        let values = [
            ("client", Some(self.client)),
            ("gateway", self.gateway),
            ("identity", self.identity),
            ("target", Some(self.target)),
        ];
        for (key, value) in values {
            if let Some(value) = value {
                text += &format!(" {key}={}", quoted(value));
            }
        }
        let Self {
            bytes_received,
            bytes_sent,
            seconds,
            result,
            ..
        } = self;
        text += &format!(
            " bytes_received={bytes_received} bytes_sent={bytes_sent} seconds={seconds:.3} result={result}"
        );
        text
    }
}

fn quoted(value: &str) -> String {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b".:-_[]%@/".contains(&octet);
    if !value.is_empty() && value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("\"{}\"", value.escape_debug())
}

/// Writes records to a file, on a thread of its own. Dropping it writes those that wait.
#[derive(Debug)]
pub(crate) struct AccessWriter {
    format: AccessFormat,
    /// `None` only while it is dropped.
    lines: Option<Sender<String>>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl AccessWriter {
    /// Opens the file, and starts the thread.
    ///
    /// # Errors
    /// States in one line why the file cannot be opened.
    pub(crate) fn open(config: &AccessLog) -> Result<Self, String> {
        let path = &config.file;
        let text = |error: io::Error| format!("access log {}: {error}", path.display());
        let output = file::append_output(Path::new(path)).map_err(text)?;
        let (lines, waiting) = bounded(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let (own, format) = (Arc::clone(&lost), config.format);
        let thread = std::thread::Builder::new()
            .name("haul-access".to_owned())
            .spawn(move || write(output, &waiting, format, &own))
            .map_err(text)?;
        Ok(Self {
            format,
            lines: Some(lines),
            lost,
            thread: Some(thread),
        })
    }

    /// Queues a record. Does not block.
    pub(crate) fn record(&self, access: &Access, now: Time) {
        let line = access.line(self.format, now, Clock::new().realtime_ns());
        let queued = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(queued, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AccessWriter {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

/// Writes lines until all senders are gone. Lines that cannot be written count as lost.
fn write(mut output: impl Write, lines: &Receiver<String>, format: AccessFormat, lost: &AtomicU64) {
    while let Ok(first) = lines.recv() {
        let mut text = String::new();
        let mut count = 0;
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            text += &lost_line(format, missing);
        }
        for line in std::iter::once(first).chain(lines.try_iter().take(WAITING_MAX)) {
            text += &line;
            text.push('\n');
            count += 1;
        }
        if output.write_all(text.as_bytes()).is_err() {
            lost.fetch_add(missing + count, Ordering::Relaxed);
        }
    }
}

fn lost_line(format: AccessFormat, missing: u64) -> String {
    let date = date::millis(Clock::new().realtime_ns());
    match format {
        AccessFormat::Text => format!("{date} lost={missing}\n"),
        AccessFormat::Json => format!("{{\"date\":\"{date}\",\"lost\":{missing}}}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            client: "192.0.2.1:40000".to_owned(),
            gateway: Some("site \"a\"\n".to_owned()),
            identity: None,
            target: "[2001:db8::1]:80".to_owned(),
            received: 12,
            sent: 3_456,
            began: Time::from_ns(SECOND_NS),
            ended: Time::from_ns(SECOND_NS + 1_500_999_999),
            outcome: Outcome::Refused(111),
        }
    }

    #[test]
    fn a_record_is_one_line_whatever_peers_state() {
        let line = |format| access().line(format, Time::from_ns(4 * SECOND_NS), 10 * SECOND_NS);
        assert_eq!(
            line(AccessFormat::Text),
            "1970-01-01T00:00:08.500Z client=192.0.2.1:40000 gateway=\"site \\\"a\\\"\\n\" target=[2001:db8::1]:80 \
             bytes_received=12 bytes_sent=3456 seconds=1.500 result=refused"
        );
        let json: serde_json::Value = serde_json::from_str(&line(AccessFormat::Json)).unwrap();
        assert_eq!(json["gateway"], "site \"a\"\n");
        assert_eq!(json["identity"], serde_json::Value::Null);
        assert_eq!(
            (&json["seconds"], &json["result"]),
            (&1.5.into(), &"refused".into())
        );
    }

    #[test]
    fn records_are_appended_and_all_are_written_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("access.log");
        let config = AccessLog {
            file: file.clone(),
            format: AccessFormat::Text,
        };
        for _ in 0..2 {
            let writer = AccessWriter::open(&config).unwrap();
            for _ in 0..100 {
                writer.record(&access(), Time::from_ns(0));
            }
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 200);
        assert!(text.lines().all(|line| line.ends_with(" result=refused")));
        let nowhere = AccessLog {
            file: dir.path().to_owned(),
            ..config
        };
        let why = AccessWriter::open(&nowhere).unwrap_err();
        assert!(why.starts_with("access log "), "{why}");
    }
}
