//! The command lines of `haul profile`, `haul doctor` and `haul report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use haul_bench::plan::DEPTH_MAX;

use super::path::{Connect, Engine, ServerArgs};
use super::rdma::size;
use super::transfer::OutputArgs;
use haul_report::quantity::Probability;

use crate::quantity::{duration, rate, short_time};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Profile {
    // First: those that follow take their values away.
    #[command(flatten)]
    given: Given,
    /// A host that runs 'haul bench serve': HOST, HOST:PORT or [ADDRESS]:PORT
    #[arg(required_unless_present_any = ["scenario", "emulate"], conflicts_with_all = ["scenario", "emulate"])]
    pub(crate) host: Option<String>,
    /// Profile an emulated path on this machine instead: the name or file of a 'haul lab'
    /// scenario
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "emulate")]
    pub(crate) scenario: Option<String>,
    /// Profile distance and loss over emulated paths on this machine
    #[arg(long)]
    pub(crate) emulate: bool,
    #[command(flatten)]
    pub(crate) emulated: Emulated,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Also measure the --sink-file of the server
    #[arg(long)]
    pub(crate) sink: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub(crate) only: Vec<Part>,
    /// Reliable engines to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "ENGINE",
        default_value = "tcp,udt"
    )]
    pub(crate) engines: Vec<Engine>,
    /// Time limit; the steps that do not fit are left out
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10m")]
    pub(crate) max_time: Duration,
    /// Runs of the stability profile
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) repetitions: u32,
    /// Measure 1 to 20 streams, and message sizes from 2^0 to 2^23
    #[arg(long)]
    pub(crate) full: bool,
    /// Write report.html, results.json and results.csv into this directory
    #[arg(long, value_name = "DIR", default_value = "haul-profile")]
    pub(crate) out: PathBuf,
    /// Used by --emulate: print only the document
    #[arg(long, hide = true)]
    pub(crate) inside: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The options that were given: the others have their defaults.
#[derive(Debug, Default)]
pub(crate) struct Given(Vec<String>);

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let ids = matches.ids().map(clap::Id::as_str);
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(Self(given.map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl Profile {
    /// An option that was given though it has no meaning for what is profiled, and what to do about
    /// it.
    pub(crate) fn misplaced(&self) -> Option<(String, &'static str)> {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut refused: Vec<(Vec<String>, &str)> = Vec::new();
        if self.emulate {
            let hint = "leave it out: --distances, --streams, --losses and --sweep say what is measured over emulated paths";
            refused.push((own(&["only", "full", "repetitions"]), hint));
        } else {
            let hint = "it is about paths that this machine emulates: leave it out, or give --emulate in place of a host or scenario";
            refused.push((options_of::<Emulated>(), hint));
        }
        if self.host.is_none() {
            let hint = "leave it out: the server of an emulated path starts by itself, and has no files or devices";
            refused.push((options_of::<ServerArgs>(), hint));
            refused.push((own(&["sink"]), hint));
        }
        if !self.emulated.sweep.is_empty() {
            let hint = "leave it out, or sweep that too: --sweep loss is over --losses, --sweep reorder over --reorders, both with one stream";
            refused.push((own(&["streams"]), hint));
            if !self.emulated.sweep.contains(&Sweep::Loss) {
                refused.push((own(&["losses"]), hint));
            }
            if !self.emulated.sweep.contains(&Sweep::Reorder) {
                refused.push((own(&["reorders", "reorder_delay"]), hint));
            }
        }
        refused.into_iter().find_map(|(names, hint)| {
            let name = names.into_iter().find(|name| self.given.0.contains(name))?;
            Some((format!("--{}", name.replace('_', "-")), hint))
        })
    }
}

/// The options of a part of a command line.
fn options_of<T: Args>() -> Vec<String> {
    let command = T::augment_args(Command::new(""));
    let options = command.get_arguments();
    options.map(|option| option.get_id().to_string()).collect()
}

/// The paths of `--emulate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Emulated {
    /// Rate of the paths
    #[arg(long, value_parser = rate, value_name = "RATE", default_value = "500Mbit", requires = "emulate")]
    pub(crate) rate: u64,
    /// Round-trip times of the distance profile
    #[arg(long, value_parser = short_time, value_delimiter = ',', value_name = "TIME",
          default_value = "1ms,20ms,50ms,100ms,200ms", requires = "emulate")]
    pub(crate) distances: Vec<Duration>,
    /// Numbers of streams of the distance profile
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1,4,16", requires = "emulate",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Vec<u16>,
    /// Packet loss of the loss profile and sweep, at the middle distance
    #[arg(long, value_delimiter = ',', value_name = "SHARE", default_value = "0,1e-5,1e-4,1e-3,1e-2",
          value_parser = share, requires = "emulate")]
    pub(crate) losses: Vec<f64>,
    /// Sweep RDMA over loss, reordering or both by message size and depth, at the middle distance
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "WHAT",
        requires = "emulate"
    )]
    pub(crate) sweep: Vec<Sweep>,
    /// Shares of packets that the reordering sweep delays
    #[arg(long, value_delimiter = ',', value_name = "SHARE", default_value = "0,1e-3,1e-2,5e-2",
          value_parser = share, requires = "sweep")]
    pub(crate) reorders: Vec<f64>,
    /// Delay of those packets
    #[arg(long, value_parser = short_time, value_name = "TIME", default_value = "2ms", requires = "sweep")]
    pub(crate) reorder_delay: Duration,
    /// Message sizes of the sweep
    #[arg(long, value_parser = size, value_delimiter = ',', value_name = "SIZE", default_value = "4KiB,64KiB,1MiB",
          requires = "sweep")]
    pub(crate) sizes: Vec<u32>,
    /// Outstanding messages of the sweep
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1,16,128", requires = "sweep",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(crate) depths: Vec<u32>,
    /// How queue pairs of the sweep connect: with the connection manager, without it, or both
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "HOW",
        default_value = "cm",
        requires = "sweep"
    )]
    pub(crate) connect: Vec<Connect>,
}

/// What a sweep goes over, beside message size and depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sweep {
    /// Lost packets
    Loss,
    /// Delayed packets that others overtake
    Reorder,
}

const EXAMPLES: &str = "\
Examples:
  haul bench serve --listen 0.0.0.0 --allow-insecure    the other end
  haul profile host                                     ten minutes at most, then haul-profile/report.html
  haul profile host --only streams,stability --max-time 2m
  haul profile --scenario wan-100ms                     an emulated path on this machine
  haul profile --emulate                                goodput by distance and by loss
  haul profile --emulate --sweep loss,reorder           … of RDMA by loss, reordering, message size and depth
  haul profile --emulate --sweep loss --connect cm,exchange --losses 0,1%";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Goodput by parallel streams
    Streams,
    /// Goodput by message size
    Messages,
    /// Goodput by both
    Grid,
    /// Stability of repeated runs
    Stability,
    /// Cross traffic
    Cross,
    /// With and without the disks: --source-file and --sink
    Stages,
}

impl From<Part> for haul_bench::profile::Section {
    fn from(part: Part) -> Self {
        match part {
            Part::Streams => Self::Streams,
            Part::Messages => Self::Messages,
            Part::Grid => Self::Grid,
            Part::Stability => Self::Stability,
            Part::Cross => Self::Cross,
            Part::Stages => Self::Stages,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also check which ports of HAUL_PORT_RANGE the path to this host lets through, by ssh:
    /// [USER@]HOST:
    #[arg(value_name = "[USER@]HOST:")]
    pub(crate) host: Option<std::ffi::OsString>,
    #[command(flatten)]
    pub(crate) ssh: super::trust::Ssh,
    /// Rate of the path to tune for
    #[arg(long, value_parser = rate, value_name = "RATE", default_value = "1Gbit")]
    pub(crate) rate: u64,
    /// Round-trip time of the path
    #[arg(long, value_parser = short_time, value_name = "TIME", default_value = "100ms")]
    pub(crate) rtt: Duration,
    /// Also print the checks that passed
    #[arg(long)]
    pub(crate) all: bool,
    /// Show the commands that change what costs throughput, and run them once the user has agreed;
    /// as root. What they change lasts until the next boot, except limits
    #[arg(long, conflicts_with = "json")]
    pub(crate) fix: bool,
    /// Run them without asking
    #[arg(long, requires = "fix")]
    pub(crate) yes: bool,
    /// Print one JSON object to stdout instead
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Results: a directory of --out, or the results.json in it
    pub(crate) a: PathBuf,
    /// Results to compare with
    pub(crate) b: Option<PathBuf>,
    /// Write an HTML page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// A share between 0 and 1.
fn share(text: &str) -> Result<f64, String> {
    let share = Probability::parse(text).ok().map(|share| share.0);
    share
        .filter(|share| *share < 1.0)
        .ok_or_else(|| "give a share of packets from 0 to 1, like 1e-4 or 0.1%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_lie_between_nothing_and_all() {
        assert_eq!((share("1e-4"), share("0")), (Ok(1e-4), Ok(0.0)));
        assert!((share("0.1%").unwrap() - 1e-3).abs() < 1e-12);
        for bad in ["1", "-0.1", "x", "NaN", "100%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
