//! The command line.

use std::path::PathBuf;

use haul_lab::compare::programs::Programs;
use haul_lab::scenario::unit::{Probability, Rate, Size, Span};

/// Arguments of `compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Rates of the path
    #[arg(long, value_delimiter = ',', value_parser = Rate::parse, value_name = "RATE,…", default_value = "1Gbit")]
    pub rates: Vec<Rate>,
    /// Round-trip times
    #[arg(long, value_delimiter = ',', value_parser = Span::parse, value_name = "TIME,…", default_value = "10ms,100ms")]
    pub rtts: Vec<Span>,
    /// Independent packet loss, in both directions
    #[arg(long, value_delimiter = ',', value_parser = Probability::parse, value_name = "SHARE,…", default_value = "0,1e-3")]
    pub losses: Vec<Probability>,
    /// Largest IP packets, bytes
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        default_value = "1500"
    )]
    pub mtus: Vec<u16>,
    /// A scenario instead of rates, round-trip times, losses and MTUs; repeatable
    #[arg(long = "scenario", value_name = "FILE|NAME", conflicts_with_all = ["rates", "rtts", "losses", "mtus"])]
    pub scenarios: Vec<String>,
    /// No emulation: two hosts joined directly
    #[arg(long, conflicts_with_all = ["rates", "rtts", "losses", "scenarios"])]
    pub unshaped: bool,
    /// Tools: haul-udt, haul-udt-rate (told the rate), haul-udt-CC, haul-tcp, haul-tcp-CC,
    /// iperf3-CC, libudt; add -N for N streams
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "TOOL,…",
        default_value = "haul-udt,haul-udt-rate,haul-tcp,haul-tcp-8,iperf3-cubic,iperf3-bbr,iperf3-cubic-8,iperf3-bbr-8,libudt"
    )]
    pub tools: Vec<String>,
    /// Number of runs of each tool on each path
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// Duration of each run, in whole seconds
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "10s", conflicts_with = "bytes")]
    pub time: Span,
    /// Bytes that each run sends, instead of --time
    #[arg(long, value_parser = Size::parse, value_name = "SIZE")]
    pub bytes: Option<Size>,
    /// Maximum wait for an idle machine before each run
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "10s")]
    pub settle: Span,
    /// Judge each median by the requirements of the project
    #[arg(long)]
    pub bar: bool,
    /// Write results.json, results.csv and goodput.svg into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}

/// Arguments of `fairness`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    /// Rate of the path
    #[arg(long, value_parser = Rate::parse, value_name = "RATE", default_value = "1Gbit")]
    pub rate: Rate,
    /// Round-trip time
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "50ms")]
    pub rtt: Span,
    /// Independent packet loss, in both directions
    #[arg(long, value_parser = Probability::parse, value_name = "SHARE", default_value = "0")]
    pub loss: Probability,
    /// Largest IP packet, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// A scenario instead of rate, round-trip time, loss and MTU
    #[arg(long, value_name = "FILE|NAME", conflicts_with_all = ["rate", "rtt", "loss", "mtu"])]
    pub scenario: Option<String>,
    /// Two tools that share the path, separated by a comma; repeatable [default: haul-udt,haul-udt
    /// and haul-udt,iperf3-cubic, unless --against or --udp is given]
    #[arg(long = "pair", value_name = "TOOL,TOOL")]
    pub pairs: Vec<String>,
    /// The tool that runs beside the flows of --against and --udp
    #[arg(long, value_name = "TOOL", default_value = "haul-udt")]
    pub tool: String,
    /// TCP flows with these congestion controls; --flows sets how many
    #[arg(long, value_delimiter = ',', value_name = "CC,…")]
    pub against: Vec<String>,
    /// Numbers of TCP flows
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,2,4,8,16,32",
          value_parser = clap::value_parser!(u16).range(1..=128))]
    pub flows: Vec<u16>,
    /// UDP without congestion control at these payload rates
    #[arg(long, value_delimiter = ',', value_parser = Rate::parse, value_name = "RATE,…")]
    pub udp: Vec<Rate>,
    /// Duration, in whole seconds
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "60s")]
    pub time: Span,
    /// Delay before the second flow starts, when counting begins [default: 0s; 5s with --against
    /// and --udp]
    #[arg(long, value_parser = Span::parse, value_name = "TIME")]
    pub later: Option<Span>,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}
