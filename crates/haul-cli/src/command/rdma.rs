//! `haul bench rdma`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_bench::client;
use haul_bench::path::Files;
use haul_bench::plan::{
    Connect, DEPTH_MAX, Limit, Plan, SIZE_MAX, Service, Test, UD_SEND_MAX, Waiting, Wire,
};
use haul_bench::report::Summary;
use haul_bench::server::{Bench, Config, Log, Server};
use haul_control::audit::Audit;
use haul_control::trust::ServerConfig;

use super::fail;
use super::listen::Listen;
use crate::args::Channel;
use crate::args::rdma::{self, BenchServe, Rdma, RdmaKind};
use crate::interrupt;
use crate::operand::{host_and_port, listen_address};
use crate::output::rdma::RdmaOutput;
use crate::output::tell;
use crate::trust::ServerFiles;
use crate::{provider, trust};

/// Receives take so much memory, bytes, unless the user asks for more.
const RECEIVES: u32 = 256 << 20;

/// Messages outstanding on a queue pair, as in perftest; and room in the queues of one that is
/// idle.
const DEPTH: u32 = 128;
const DEPTH_IDLE: u32 = 16;

/// Measures, or serves those who do.
pub(crate) fn run(args: Rdma) -> ExitCode {
    match args.kind {
        Some(RdmaKind::Serve(args)) => serve(args),
        None => {
            let output = Arc::new(RdmaOutput::new(args.output));
            let shown = Arc::clone(&output);
            let watched = interrupt::watch(move |by| shown.interrupted(by));
            match watched.and_then(|()| measure(&args, &output)) {
                Ok(summary) => output.summary(&summary),
                Err(fault) => output.fault(&fault),
            }
        }
    }
}

/// Serves until it is ended.
pub(crate) fn serve(args: BenchServe) -> ExitCode {
    match bind(&args) {
        Ok(server) => {
            server.run();
            ExitCode::SUCCESS
        }
        Err(fault) => fail(&fault),
    }
}

fn measure(args: &Rdma, output: &RdmaOutput) -> Result<Summary, Fault> {
    let plan = plan(args)?;
    let (host, port) = host_and_port(args.host.as_deref().unwrap_or_default());
    let port = port.unwrap_or(args.port);
    let config = client::VerbsConfig {
        control: trust::of_bench(&args.trust, &host, port)?,
        host,
        port,
        device: provider::device(&args.device, plan.service, &plan.wire)?,
        plan,
        file: args.file.clone(),
        connect_timeout: args.connect_timeout.max(Duration::from_millis(1)),
        dead_after: args.peer_timeout.max(Duration::from_secs(1)),
    };
    client::run(&config, output)
}

fn plan(args: &Rdma) -> Result<Plan, Fault> {
    let service = Service::from(args.qp);
    if service != Service::Rc && args.device.channel == Channel::Udt {
        let text = "datagram services are neither over UDT nor over TCP";
        return Err(Fault::new(Code::Usage, text).hint("leave --channel out"));
    }
    let op = match args.op {
        Some(op) => op.into(),
        None if service == Service::Ud => haul_bench::Op::WriteRecord,
        None => haul_bench::Op::Write,
    };
    let latency = args.test == rdma::Test::Lat;
    let sizes = match (&args.sizes, args.all, args.size) {
        (Some(range), _, _) => powers_of_two(range),
        (None, true, _) if service == Service::Ud && op == haul_bench::Op::Send => {
            powers_of_two(&(1..=UD_SEND_MAX))
        }
        (None, true, _) => powers_of_two(&(1..=SIZE_MAX)),
        (None, false, Some(size)) => vec![size],
        (None, false, None) if latency => vec![64],
        (None, false, None) if args.idle_qps.is_some() => vec![64],
        (None, false, None) if args.file.is_some() => vec![1 << 20],
        (None, false, None) => vec![64 << 10],
    };
    if sizes.is_empty() {
        return Err(Fault::new(Code::Usage, "no power of two is in that range"));
    }
    let longest = sizes.iter().copied().max().unwrap_or(1);
    // A file has a place of its own for every message in flight.
    let depth = match (args.depth, &args.file, args.idle_qps) {
        (Some(depth), None, _) => depth,
        (depth, Some(_), _) => depth.unwrap_or(DEPTH).min((RECEIVES / longest).max(2)),
        (None, None, Some(_)) => DEPTH_IDLE,
        (None, None, None) => DEPTH,
    };
    let by_default = match args.idle_qps {
        Some(_) => DEPTH_IDLE,
        None => (4 * depth)
            .min((RECEIVES / longest).max(depth.min(16)))
            .min(DEPTH_MAX),
    };
    let limit = args.iterations.map_or_else(
        || Limit::TimeMs(u64::try_from(args.time.as_millis()).unwrap_or(u64::MAX)),
        Limit::Iterations,
    );
    Ok(Plan {
        service,
        op,
        test: match args.test {
            _ if args.idle_qps.is_some() => Test::Idle,
            rdma::Test::Bw => Test::Bw,
            rdma::Test::Lat => Test::Lat,
        },
        sizes,
        depth,
        rx_depth: args.rx_depth.unwrap_or(by_default).max(1),
        qps: args.idle_qps.unwrap_or(args.qps),
        bidirectional: args.bidirectional,
        limit,
        post_list: args.post_list,
        cq_mod: args.cq_mod.unwrap_or_else(|| (depth / 4).max(1)),
        inline: args.inline,
        outs: args.outs,
        verify: args.verify,
        waiting: match args.wait {
            _ if args.events => Waiting::Events,
            rdma::Wait::Adaptive => Waiting::Adaptive,
            rdma::Wait::Poll => Waiting::Poll,
            rdma::Wait::Events => Waiting::Events,
        },
        connect: if args.exchange {
            Connect::Exchange
        } else {
            Connect::Cm
        },
        remote_placement: args.remote_placement,
        file: None,
        wire: Wire {
            crc: !args.wire.no_crc,
            fpdu_max: args
                .wire
                .fpdu
                .map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            strict: args.wire.strict_crc,
            over: None,
        },
        path_mtu: args.path_mtu,
        max_rate: args.max_rate.map(|bits| bits / 8),
        beside: false,
    })
}

fn powers_of_two(range: &std::ops::RangeInclusive<u32>) -> Vec<u32> {
    (0..u32::BITS)
        .map(|exponent| 1 << exponent)
        .filter(|size| range.contains(size))
        .collect()
}

fn bind(args: &BenchServe) -> Result<Server, Fault> {
    const EXPOSURE: &str = "everybody is admitted: whoever reaches this port can use this machine's \
                            processor and memory";
    let files = match args.trust.names_clients() || needs_clients(args)? {
        true => Some(ServerFiles::open(&args.trust)?),
        false => None,
    };
    let exposure = files.is_none().then_some(EXPOSURE);
    let listen = Listen::parse(&args.listen, args.port, true, exposure)?;
    let control = || match &files {
        Some(files) => files.config(),
        None => ServerConfig::insecure(),
    };
    let server = listen.bind(|addresses| Server::bind(addresses, control()?, config(args)))?;
    let addresses = server
        .addresses()
        .map_err(|error| Fault::new(Code::Other, format!("cannot tell the addresses: {error}")))?;
    tell(&format!("ready to measure on {}", listen.shown(&addresses)));
    if let Some(key) = files.as_ref().and_then(ServerFiles::public) {
        let fingerprint = key.fingerprint();
        tell(&format!("the server's key is {key} ({fingerprint})"));
    }
    Ok(server)
}

/// Returns whether other hosts reach the server, and not everybody is to be admitted.
fn needs_clients(args: &BenchServe) -> Result<bool, Fault> {
    if args.trust.allow_insecure {
        return Ok(false);
    }
    for text in &args.listen {
        if !listen_address(text, args.port)?.ip().is_loopback() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the benches of a server that moves files as well.
pub(crate) fn service(log: Log, audit: Option<Audit>) -> Arc<Bench> {
    /// After this long without a message the client is lost.
    const DEAD_AFTER: Duration = Duration::from_secs(20);
    Bench::new(Config {
        data_port: 0,
        devices: Box::new(|service, wire| {
            provider::device(&rdma::Device::default(), service, wire)
        }),
        file: None,
        files: Files::default(),
        one_off: false,
        dead_after: DEAD_AFTER,
        log,
        audit,
    })
}

fn config(args: &BenchServe) -> Config {
    let device = args.device.clone();
    let log: Log = if args.quiet {
        Arc::new(|_| {})
    } else {
        Arc::new(tell)
    };
    Config {
        data_port: args.data_port,
        devices: Box::new(move |service, wire| provider::device(&device, service, wire)),
        file: args.file.clone(),
        files: Files {
            source: args.source_file.clone(),
            sink: args.sink_file.clone(),
        },
        one_off: args.one_off,
        dead_after: args.peer_timeout.max(Duration::from_secs(1)),
        log,
        audit: None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, BenchKind, Command};

    fn parse(line: &str) -> Rdma {
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Bench(bench) = args.command else {
            panic!("{line}");
        };
        match bench.kind {
            Some(BenchKind::Rdma(rdma)) => *rdma,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn every_default_is_a_plan_that_makes_sense() {
        for line in [
            "haul bench rdma host",
            "haul bench rdma host --test lat",
            "haul bench rdma host --op send --all",
            "haul bench rdma host --op send --size 8MiB --verify",
            "haul bench rdma host --op read -b --qps 4 -s 8388608 -n 10",
            "haul bench rdma host --idle-qps 1000",
            "haul bench rdma host --depth 1",
            "haul bench rdma host --qp ud",
            "haul bench rdma host --qp ud --op send --all",
            "haul bench rdma host --qp ud --op write-record --all --test lat",
            "haul bench rdma host --qp rd -a -b",
        ] {
            let plan = plan(&parse(line)).unwrap();
            assert_eq!(plan.validate(), Ok(()), "{line}");
        }
    }

    #[test]
    fn all_sizes_are_the_powers_of_two() {
        let plan = plan(&parse("haul bench rdma host -a")).unwrap();
        assert_eq!(plan.sizes.len(), 24);
        assert_eq!(plan.sizes.last(), Some(&(1 << 23)));
        assert_eq!(powers_of_two(&(3..=16)), [4, 8, 16]);
    }

    #[test]
    fn the_plain_bench_takes_a_host_as_ever() {
        let args = Args::try_parse_from(["haul", "bench", "host", "--time", "1s"]).unwrap();
        let Command::Bench(bench) = args.command else {
            panic!("bench");
        };
        assert_eq!(bench.host.as_deref(), Some("host"));
        for line in ["haul bench", "haul bench rdma", "haul bench rdma h --op x"] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
