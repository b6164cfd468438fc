//! The command line of `haul engine`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use haul_soft::rnic::Cpus;

use crate::quantity::bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum Engine {
    /// Run an engine in the foreground or as a service
    Run(EngineRun),
}

#[derive(Debug, Args)]
pub(crate) struct EngineRun {
    /// The socket of clients; `-` is a listening socket on stdin, as systemd passes one [default:
    /// HAUL_ENGINE_SOCKET, $XDG_RUNTIME_DIR/haul/engine.sock, or for root /run/haul/engine.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) listen: Option<PathBuf>,
    /// Processors of the engine's threads, as taskset(1) has them: 2,4-7 [default: all]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<Cpus>,
    /// Serve all users whom the permissions of the socket let in, not only the engine's own and
    /// root
    #[arg(long)]
    pub(crate) all_users: bool,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: u32,
    /// Of these, clients of one user other than the engine's own
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) user_clients: u32,
    /// Memory that one client may register
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "64GiB")]
    pub(crate) client_memory: u64,
    /// Serve metrics as OpenMetrics at http://ADDR:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// A name by which clients reach the metrics, besides addresses; repeatable
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub(crate) metrics_name: Vec<String>,
    /// Print only errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}
