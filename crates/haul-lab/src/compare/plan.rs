//! The command lines of a run, and the report of a tool.

use std::ffi::OsString;

use super::arrivals::Ends;

/// How much a run sends.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// For this time.
    Seconds(u32),
    /// This many bytes.
    Bytes(u64),
}

/// The two command lines of a run, and how to detect that the server is ready.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command line on host `b`.
    pub server: Vec<OsString>,
    /// The command line on host `a`.
    pub client: Vec<OsString>,
    /// The port that the server listens on.
    pub port: u16,
    /// Whether that is a UDP port.
    pub udp: bool,
    /// The server ends with its first client; otherwise it is asked to.
    pub server_ends: bool,
}

/// A tool's report on its run.
#[derive(Clone, Debug)]
pub struct Reported {
    /// Payload that was received.
    pub bytes: u64,
    /// From the first byte at the receiver to the last that counts.
    pub seconds: f64,
    /// When its arrivals are over.
    pub ends: Ends,
    /// Payload retransmitted.
    pub resent_bytes: f64,
    /// Payload received by time: the length of a span in seconds, and each span's bytes.
    pub spans: Vec<(f64, f64)>,
}

impl Reported {
    /// The payload that counts for goodput, and over which time. `arrival_s`: from the first
    /// payload at the device to the last that counts; `sends_s`: how long the tool was to send.
    ///
    /// A tool that was to send for a time, and then waits until all has arrived, is cut off at that
    /// time, as `iperf3` cuts itself off: waiting for the last repairs is not what either is to be
    /// measured by.
    pub(crate) fn within(&self, arrival_s: Option<f64>, sends_s: Option<f64>) -> (f64, f64) {
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let bytes = self.bytes as f64;
        let seconds = arrival_s.unwrap_or(self.seconds);
        match sends_s {
            Some(sends_s) if self.ends == Ends::LastByte && sends_s < seconds => {
                // The tool saw its first byte this much later than the device did.
                let late_s = (seconds - self.seconds).max(0.0);
                (self.bytes_by(sends_s - late_s), sends_s)
            }
            _ => (bytes, seconds),
        }
    }

    /// Returns the bytes that had arrived by a time, interpolated within a span.
    fn bytes_by(&self, time: f64) -> f64 {
        let mut left = time;
        let mut bytes = 0.0;
        for &(length, span) in &self.spans {
            let part = (left / length).clamp(0.0, 1.0);
            bytes += span * part;
            left -= length;
        }
        bytes
    }
}
