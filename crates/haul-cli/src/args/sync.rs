//! The command line of `haul sync`.

use std::ffi::OsString;

use clap::Args;

use super::list::Rules;
use super::transfer::Transfer;

#[derive(Debug, Args)]
#[command(override_usage = "haul sync [OPTIONS] SOURCE DESTINATION/", after_help = SYNC_EXAMPLES)]
pub(crate) struct Sync {
    /// A directory; SOURCE/. is what is in it. One of both operands is local, the other is
    /// [USER@]HOST:DIR by ssh, or haul://HOST[:PORT]/DIR at a server
    #[arg(value_name = "SOURCE")]
    pub(crate) source: OsString,
    /// The directory that gets it, as with haul send and haul get
    #[arg(value_name = "DESTINATION/")]
    pub(crate) destination: OsString,
    /// Compare files by their digests, not by size and time
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Leave files that are newer at the destination as they are
    #[arg(long, short)]
    pub(crate) update: bool,
    /// Of a file over 1 MiB that is replaced, transfer only the pieces of 4 KiB that differ from
    /// what is at the same place at the destination
    #[arg(long)]
    pub(crate) delta: bool,
    /// Afterwards delete what only the destination has, except what the rules and ignore files
    /// exclude
    #[arg(long)]
    pub(crate) delete: bool,
    /// Delete nothing if it would be more than this many entries
    #[arg(long, value_name = "N", default_value_t = haul::sync::MAX_DELETE, requires = "delete")]
    pub(crate) max_delete: u64,
    /// Delete although the source is on another file system than at the last deletion
    #[arg(long, requires = "delete")]
    pub(crate) accept_source: bool,
    #[command(flatten)]
    pub(crate) rules: Rules,
    /// Ignore .haulignore files
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Do not use or store measured path rates
    #[arg(long)]
    pub(crate) no_path_memory: bool,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

const SYNC_EXAMPLES: &str = "\
Examples:
  haul sync results host:/data/                      /data/results becomes as results is
  haul sync --delete --dry-run results host:/data/   what would be copied, replaced and deleted
  haul sync --delete results/. haul://host/results/  the content of results, at a server
  haul sync host:/data/results ./                    ./results becomes as it is at the host";
