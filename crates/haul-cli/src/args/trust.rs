//! Identities on the command line: keys, ssh, pairing.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use haul::ports::Ports;
use haul_control::identity::PublicKey;

use crate::quantity::duration;

/// Who a client is, and which servers it accepts.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClientTrust {
    /// This client's private key [default: ~/.config/haul/key.pem, if it exists]
    #[arg(
        help_heading = "Trust in servers",
        long,
        value_name = "FILE",
        env = "HAUL_KEY"
    )]
    pub(crate) key: Option<PathBuf>,
    /// Accept only the server with this public key, instead of the known servers
    #[arg(help_heading = "Trust in servers", long, value_name = "KEY")]
    pub(crate) server_key: Option<PublicKey>,
    /// A private key that both ends have, in place of --key and known servers
    #[arg(help_heading = "Trust in servers", long, value_name = "FILE", conflicts_with_all = ["key", "server_key", "certificate", "roots"])]
    pub(crate) shared_key: Option<PathBuf>,
    /// Accept a server whose certificate for its name these root certificates (PEM) issued
    #[arg(
        help_heading = "Trust in servers",
        long,
        value_name = "FILE",
        conflicts_with = "server_key"
    )]
    pub(crate) roots: Option<PathBuf>,
    /// This client's certificate (PEM), in place of a key
    #[arg(
        help_heading = "Trust in servers",
        long,
        value_name = "FILE",
        requires = "certificate_key",
        conflicts_with = "key"
    )]
    pub(crate) certificate: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(
        help_heading = "Trust in servers",
        long,
        value_name = "FILE",
        requires = "certificate"
    )]
    pub(crate) certificate_key: Option<PathBuf>,
    /// Accept any server, and permit unencrypted data channels; for labs only
    #[arg(help_heading = "Trust in servers", long, conflicts_with_all = ["server_key", "shared_key", "roots"])]
    pub(crate) allow_insecure: bool,
}

impl ClientTrust {
    /// Returns the first option that only `haul://` has, if one was given.
    pub(crate) const fn given(&self) -> Option<&'static str> {
        if self.allow_insecure {
            Some("--allow-insecure")
        } else if self.server_key.is_some() {
            Some("--server-key")
        } else if self.shared_key.is_some() {
            Some("--shared-key")
        } else if self.roots.is_some() {
            Some("--roots")
        } else if self.certificate.is_some() {
            Some("--certificate")
        } else {
            None
        }
    }
}

/// Which clients a server accepts, and who it is.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerTrust {
    /// The clients that have access, one to a line; read again at SIGHUP [default:
    /// ~/.config/haul/authorized_keys, of root /etc/haul/authorized_keys]
    #[arg(help_heading = "Trust in clients", long, value_name = "FILE")]
    pub(crate) authorized_keys: Option<PathBuf>,
    /// The server's private key, made if it is missing [default: key.pem beside the default
    /// authorised keys]
    #[arg(help_heading = "Trust in clients", long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// A private key that server and clients share, in place of keys of their own
    #[arg(help_heading = "Trust in clients", long, value_name = "FILE", conflicts_with_all = ["authorized_keys", "key", "certificate", "client_roots"])]
    pub(crate) shared_key: Option<PathBuf>,
    /// The server's certificate (PEM), beside its key
    #[arg(
        help_heading = "Trust in clients",
        long,
        value_name = "FILE",
        requires = "certificate_key"
    )]
    pub(crate) certificate: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(
        help_heading = "Trust in clients",
        long,
        value_name = "FILE",
        requires = "certificate"
    )]
    pub(crate) certificate_key: Option<PathBuf>,
    /// Root certificates (PEM) of clients that authorised keys name by name:
    #[arg(help_heading = "Trust in clients", long, value_name = "FILE")]
    pub(crate) client_roots: Option<PathBuf>,
    /// Admit any client, and permit unencrypted data channels; for labs only
    #[arg(help_heading = "Trust in clients", long, conflicts_with_all = ["authorized_keys", "shared_key", "client_roots"])]
    pub(crate) allow_insecure: bool,
}

impl ServerTrust {
    /// Returns whether an option names the clients that have access.
    pub(crate) const fn names_clients(&self) -> bool {
        self.authorized_keys.is_some() || self.shared_key.is_some() || self.client_roots.is_some()
    }
}

/// How ssh is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct Ssh {
    /// The ssh command and its first arguments, separated by blanks
    #[arg(
        help_heading = "Ssh",
        long,
        value_name = "COMMAND",
        env = "HAUL_SSH",
        default_value = "ssh"
    )]
    pub(crate) ssh: String,
    /// The command that starts haul at the other host
    #[arg(help_heading = "Ssh", long, value_name = "PATH", default_value = haul::ssh::REMOTE_HAUL)]
    pub(crate) remote_haul: String,
    #[arg(help_heading = "Ssh", 
        long,
        value_name = "FIRST-LAST",
        env = "HAUL_PORT_RANGE",
        help = format!(
            "Ports of the data, TCP and UDP; HAUL_PORT_RANGE at the other host has precedence \
             [default: {}]",
            Ports::DEFAULT
        )
    )]
    pub(crate) ports: Option<Ports>,
    /// Address for the data, if not the one that the other host reports: behind NAT
    #[arg(help_heading = "Ssh", long, value_name = "HOST")]
    pub(crate) data_address: Option<String>,
    /// Send the data through ssh as well, although that is slower
    #[arg(help_heading = "Ssh", long)]
    pub(crate) via_ssh: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Serve the client on stdin and stdout
    #[arg(long, required = true)]
    pub(crate) stdio: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// Where the files go
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Address to listen on, as the sender reaches it: ADDR, ADDR:PORT or [ADDR]:PORT [default:
    /// all addresses, at a port of the range]
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) listen: Option<String>,
    #[arg(
        long,
        value_name = "FIRST-LAST",
        env = "HAUL_PORT_RANGE",
        help = format!("Ports to choose from, TCP and UDP [default: {}]", Ports::DEFAULT)
    )]
    pub(crate) ports: Option<Ports>,
    /// Validity of the code
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10m")]
    pub(crate) time: Duration,
    /// Print only failures, and the code
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Make a key pair, if there is none, and print the public key
    New(KeyFile),
    /// Print the public key, and its fingerprint on stderr
    Show(KeyFile),
    /// Trust the server at haul://HOST[:PORT] if it has this public key
    Trust(KeyTrust),
    /// Remove a server from the trusted ones
    Forget(KeyForget),
}

#[derive(Debug, Args)]
pub(crate) struct KeyFile {
    /// The private key [default: ~/.config/haul/key.pem]
    #[arg(long, value_name = "FILE", env = "HAUL_KEY")]
    pub(crate) key: Option<PathBuf>,
    /// The key of this host's server: of root /etc/haul/key.pem
    #[arg(long, conflicts_with = "key")]
    pub(crate) server: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyTrust {
    /// The server: haul://HOST[:PORT]
    #[arg(value_name = "haul://HOST[:PORT]")]
    pub(crate) server: std::ffi::OsString,
    /// Its public key, as 'haul key show --server' prints it there
    #[arg(value_name = "KEY")]
    pub(crate) key: PublicKey,
}

#[derive(Debug, Args)]
pub(crate) struct KeyForget {
    /// The server: haul://HOST[:PORT]
    #[arg(value_name = "haul://HOST[:PORT]")]
    pub(crate) server: std::ffi::OsString,
}
