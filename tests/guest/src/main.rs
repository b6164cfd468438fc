//! Two ends that try every verb of a provider against each other, over whatever network is between
//! them.
//!
//! `verbs-peer serve` answers; `verbs-peer check` makes a connection for each check, asks the other
//! end to do its part by small messages, compares every byte, and prints what a Rust test prints.
//!
//! Map: `device` opening and queue pairs · `message` what the ends say to each other · `pattern`
//! bytes to compare · `serve` the answering end · `client` the asking end's tools · `check` the
//! checks · `gateways` sessions over two devices · `edges` applications with RDMA at their edges.
#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "messages are short, it times what it does, and sends endpoints over a socket of its own"
)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Parser};

mod check;
mod client;
mod device;
mod edges;
mod gateways;
mod message;
mod pattern;
mod serve;

#[derive(Debug, Parser)]
enum Command {
    /// Answer until nothing has come for a while, or a client reports that it was the last
    Serve(Common),
    /// Run the checks
    Check {
        #[command(flatten)]
        common: Common,
        /// Only checks whose name contains this
        #[arg(long, default_value = "")]
        only: String,
        /// Let the server go on waiting
        #[arg(long)]
        keep: bool,
    },
    /// Send an application's bytes through two gateways
    Gateways(gateways::Ends),
    /// Send an application's messages through two gateways that end its RDMA connection
    Edges(edges::Edges),
}

#[derive(Debug, Args)]
struct Common {
    /// Provider of the device
    #[arg(long, value_enum)]
    provider: Provider,
    /// Software provider: ask for no CRC
    #[arg(long)]
    no_crc: bool,
    /// Name of the device
    #[arg(long)]
    device: String,
    /// Where the server listens; a TCP listener for the checks without connection manager is one
    /// port above
    #[arg(long)]
    at: SocketAddr,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Provider {
    Ibv,
    Soft,
}

impl Common {
    fn open(&self) -> Result<device::Opened> {
        let provider = match self.provider {
            Provider::Ibv => Arc::new(haul_ibv::Ibv::load()),
            Provider::Soft => {
                let mut options = haul_soft::rnic::Options::default();
                options.crc = !self.no_crc;
                haul_soft::rnic::provider(options)
            }
        };
        device::Opened::open(&*provider, &self.device)
    }
}

fn main() -> Result<ExitCode> {
    match Command::parse() {
        Command::Serve(common) => {
            serve::run(&common.open()?, common.at)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { common, only, keep } => {
            let failed = check::run(&common.open()?, common.at, &only, keep)?;
            Ok(ExitCode::from(u8::from(failed > 0)))
        }
        Command::Gateways(ends) => {
            ends.run()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Edges(edges) => {
            edges.run()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
