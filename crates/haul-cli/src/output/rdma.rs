//! What `haul bench rdma` prints: a table on stdout, or JSON there and the table on stderr.

use std::io::Write;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use haul::fault::Fault;
use haul_bench::report::{Cpu, Datagram, Figure, Idle, Row, Summary, VerbsObserver};
use haul_bench::{Op, Service};
use serde::Serialize;
use serde_json::{Value, json};

use super::human::{count, time};
use super::{MEASURE_AGAIN, error, merge, print_fault, print_line, tell};
use crate::args;
use crate::interrupt::{Ending, Interrupt};

/// Schema of the final object, and of the events.
const SCHEMA: &str = "haul.bench-rdma/1";

/// The output of one bench.
#[derive(Debug)]
pub(crate) struct RdmaOutput {
    options: args::OutputArgs,
    begun: Instant,
    /// What is measured, and the sizes that are done; none before the queue pairs are connected.
    so_far: Mutex<Option<Summary>>,
    ending: Ending,
}

impl RdmaOutput {
    pub(crate) fn new(options: args::OutputArgs) -> Self {
        Self {
            options,
            begun: Instant::now(),
            so_far: Mutex::default(),
            ending: Ending::default(),
        }
    }

    /// A bench that went well.
    pub(crate) fn summary(&self, summary: &Summary) -> ExitCode {
        self.ending.begin();
        if let Some(idle) = &summary.idle {
            self.table(&idle_line(idle));
        }
        let mut object = json!({ "schema": SCHEMA, "ok": true });
        merge(&mut object, summary);
        self.finish(&object);
        ExitCode::SUCCESS
    }

    /// One that failed.
    pub(crate) fn fault(&self, fault: &Fault) -> ExitCode {
        self.ending.begin();
        print_fault(fault);
        self.event("error", &error(fault));
        self.finish(&json!({
            "schema": SCHEMA, "ok": false, "error": error(fault), "so_far": *self.so_far(),
        }));
        ExitCode::from(fault.exit())
    }

    /// One that a signal ends. The sizes that are done have been printed.
    pub(crate) fn interrupted(&self, by: Interrupt) {
        self.ending.begin();
        let after = time(self.begun.elapsed());
        let rows = self
            .so_far()
            .as_ref()
            .map_or(0, |summary| summary.rows.len());
        let rows = count(rows, "size is", "sizes are");
        if !self.options.quiet {
            tell(&format!(
                "interrupted by {} after {after}: {rows} measured ({MEASURE_AGAIN})",
                by.name()
            ));
        }
        let mut object = json!({ "schema": SCHEMA, "so_far": *self.so_far() });
        merge(&mut object, &by.fields(MEASURE_AGAIN));
        self.event("error", &object["error"]);
        self.finish(&object);
    }

    fn so_far(&self) -> MutexGuard<'_, Option<Summary>> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, object: &Value) {
        self.event("end", object);
        if self.options.json {
            print_line(object);
        }
    }

    fn event(&self, name: &str, body: &impl Serialize) {
        if self.options.json_stream {
            let mut object = json!({ "event": name, "time_s": self.begun.elapsed().as_secs_f64() });
            merge(&mut object, body);
            print_line(&object);
        }
    }

    /// The table is what was asked for, unless JSON was.
    fn table(&self, line: &str) {
        if self.options.json || self.options.json_stream {
            if !self.options.quiet {
                tell(line);
            }
        } else {
            // Whoever reads stdout may have gone.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }
}

impl VerbsObserver for RdmaOutput {
    fn connected(&self, summary: &Summary) {
        self.ending.before(|| {
            *self.so_far() = Some(summary.clone());
            let mut start = json!({ "schema": SCHEMA });
            merge(&mut start, summary);
            self.event("start", &start);
            self.say(&what(summary));
        });
    }

    fn row(&self, row: &Row) {
        self.ending.before(|| self.show(row));
    }

    fn note(&self, text: &str) {
        self.ending.before(|| self.say(text));
    }
}

impl RdmaOutput {
    fn show(&self, row: &Row) {
        self.event("row", row);
        let is_first = {
            let mut so_far = self.so_far();
            let rows = so_far.as_mut().map(|summary| &mut summary.rows);
            rows.is_some_and(|rows| {
                rows.push(row.clone());
                rows.len() == 1
            })
        };
        if is_first {
            self.table(&head(row));
        }
        self.table(&line(row));
        for warning in &row.warnings {
            self.say(&format!("{} bytes: {warning}", row.bytes));
        }
        if let Some(hash) = &row.file_blake3 {
            self.say(&format!("the file is the same at both ends: blake3 {hash}"));
        }
    }

    fn say(&self, text: &str) {
        if !self.options.quiet {
            tell(text);
        }
    }
}

fn what(summary: &Summary) -> String {
    let op = match summary.op {
        Op::Write => "RDMA Write",
        Op::Read => "RDMA Read",
        Op::Send => "Send",
        Op::WriteRecord => "RDMA Write-Record",
    };
    let service = match summary.service {
        Service::Rc => "",
        Service::Ud => " by unreliable datagrams",
        Service::Rd => " by reliable datagrams",
    };
    format!(
        "{op}{service} to {}: {} here, {} there; queue pairs {}, depth {}{}",
        summary.peer,
        summary.client_device.name,
        summary.server_device.name,
        summary.qps,
        summary.depth,
        if summary.bidirectional {
            ", both directions"
        } else {
            ""
        },
    )
}

fn head(row: &Row) -> String {
    let lost = match &row.datagram {
        Some(_) => DATAGRAM_HEAD,
        None => "",
    };
    let cpu = format!("{lost}{CPU_HEAD}");
    match &row.figure {
        Figure::Bandwidth(_) => format!(
            "{:>8} {:>12} {:>10} {:>10}  {cpu}",
            "bytes", "iterations", "Gbit/s", "Mmsg/s"
        ),
        Figure::Latency(_) => format!(
            "{:>8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {cpu}",
            "bytes", "iterations", "min us", "typical", "average", "p99", "p99.9", "max"
        ),
    }
}

/// Seconds per gigabyte, then percent of a core in user code and in the kernel, of the client and
/// of the server.
const CPU_HEAD: &str = "client s/GB usr% sys%  server s/GB usr% sys%";

/// Messages of unreliable datagrams, and the share of all bytes that is valid at the receiver.
const DATAGRAM_HEAD: &str = "valid %       sent    partial       lost  ";

fn datagram(found: &Datagram) -> String {
    format!(
        "{:>7.3} {:>10} {:>10} {:>10}  ",
        found.valid_percent, found.sent_messages, found.partial_messages, found.lost_messages
    )
}

fn line(row: &Row) -> String {
    let lost = row.datagram.as_ref().map_or_else(String::new, datagram);
    let cpu = format!("{lost}{}  {}", cpu(&row.client), cpu(&row.server));
    match &row.figure {
        Figure::Bandwidth(figure) => format!(
            "{:>8} {:>12} {:>10.3} {:>10.6}  {cpu}",
            row.bytes, figure.iterations, figure.bw_average_gbps, figure.message_rate_mps,
        ),
        Figure::Latency(figure) => format!(
            "{:>8} {:>12} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}  {cpu}",
            row.bytes,
            figure.iterations,
            figure.min_us,
            figure.typical_us,
            figure.average_us,
            figure.p99_us,
            figure.p999_us,
            figure.max_us,
        ),
    }
}

fn cpu(cpu: &Cpu) -> String {
    let per_gb = match cpu.cpu_s_per_gb {
        None => "-".to_owned(),
        Some(seconds) if seconds < 100.0 => format!("{seconds:.3}"),
        Some(seconds) => format!("{seconds:.0}"),
    };
    format!(
        "{per_gb:>11} {:>4.0} {:>4.0}",
        cpu.user_percent, cpu.system_percent
    )
}

fn idle_line(idle: &Idle) -> String {
    format!(
        "{} idle queue pairs: client {:.1} KiB each, server {:.1} KiB each; kernel {:.1} and {:.1} KiB each \
         (of the whole machine: both ends where they share it)",
        idle.qps,
        idle.client_kib_per_qp,
        idle.server_kib_per_qp,
        idle.client_kernel_kib_per_qp,
        idle.server_kernel_kib_per_qp,
    )
}

#[cfg(test)]
mod tests {
    use haul_bench::report::{Bandwidth, Latency};

    use super::*;

    fn row(figure: Figure) -> Row {
        let cpu = Cpu {
            cpu_user_s: 0.1,
            cpu_system_s: 0.9,
            cpu_s_per_gb: Some(0.25),
            user_percent: 10.0,
            system_percent: 90.0,
        };
        Row {
            bytes: 65_536,
            figure,
            client: cpu,
            server: cpu,
            verified_messages: 0,
            file_blake3: None,
            datagram: None,
            path: None,
            warnings: Vec::new(),
            steps: Vec::new(),
        }
    }

    fn lossy() -> Datagram {
        Datagram {
            sent_messages: 61_035,
            sent_bytes: 4_000_000_000,
            complete_messages: 61_000,
            partial_messages: 30,
            lost_messages: 5,
            valid_bytes: 3_999_000_000,
            valid_percent: 99.975,
            kernel_drops: 0,
        }
    }

    #[test]
    fn columns_stand_under_their_heads() {
        let bandwidth = Bandwidth {
            iterations: 61_035,
            total_bytes: 4_000_000_000,
            seconds: 1.0,
            bw_average_gbps: 32.0,
            message_rate_mps: 0.061_035,
            client_gbps: 32.0,
            server_gbps: 0.0,
        };
        let latency = Latency {
            iterations: 1000,
            seconds: 1.0,
            min_us: 5.0,
            typical_us: 6.0,
            average_us: 6.5,
            stdev_us: 1.0,
            p99_us: 9.0,
            p999_us: 20.0,
            max_us: 1234.5,
        };
        for figure in [Figure::Bandwidth(bandwidth), Figure::Latency(latency)] {
            let mut row = row(figure);
            for datagram in [None, Some(lossy())] {
                row.datagram = datagram;
                let (head, line) = (head(&row), line(&row));
                assert_eq!(head.len(), line.len(), "\n{head}\n{line}");
            }
        }
    }
}
