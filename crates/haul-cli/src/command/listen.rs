//! Where servers listen.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use haul::fault::{Code, Fault};

use crate::operand::listen_address;
use crate::output::note;

/// The addresses of a server.
pub(crate) struct Listen {
    pub(crate) addresses: Vec<SocketAddr>,
    /// No address was given: loopback only.
    by_default: bool,
}

impl Listen {
    /// Parses what `--listen` gives, loopback where it is missing. Addresses that other hosts reach
    /// need `--allow-insecure` where there is an `exposure`, which states what that gives them.
    pub(crate) fn parse(
        texts: &[String],
        port: u16,
        allow_insecure: bool,
        exposure: Option<&str>,
    ) -> Result<Self, Fault> {
        let addresses = texts.iter().map(|text| listen_address(text, port));
        let mut addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        for address in &addresses {
            let Some(exposure) = exposure.filter(|_| !address.ip().is_loopback()) else {
                continue;
            };
            if !allow_insecure {
                return Err(Fault::new(
                    Code::Usage,
                    format!("will not listen on {address}: {exposure}"),
                )
                .hint("add --allow-insecure where you trust everybody who reaches it"));
            }
            note(&format!("warning: listening on {address}: {exposure}"));
        }
        let by_default = addresses.is_empty();
        if by_default {
            addresses.push((Ipv4Addr::LOCALHOST, port).into());
            addresses.push((Ipv6Addr::LOCALHOST, port).into());
        }
        Ok(Self {
            addresses,
            by_default,
        })
    }

    /// Binds by `bind`, on a machine without IPv6 without `::1` where that was not asked for.
    pub(crate) fn bind<T>(
        &self,
        bind: impl Fn(&[SocketAddr]) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match bind(&self.addresses) {
            Err(_) if self.by_default => bind(&self.addresses[..1]),
            result => result,
        }
    }

    /// The start line's words for the bound `addresses`: where the server is reached, and from
    /// where it is not.
    pub(crate) fn shown(&self, addresses: &[SocketAddr]) -> String {
        let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let shown = shown.join(" and ");
        if self.by_default {
            format!("{shown}, for this host only; for others add --listen ADDR")
        } else {
            shown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_address_the_start_line_says_that_other_hosts_are_left_out() {
        for allow_insecure in [false, true] {
            let listen = Listen::parse(&[], 7, allow_insecure, Some("everybody")).unwrap();
            let shown = listen.shown(&listen.addresses);
            assert!(shown.contains("this host only; for others add --listen"));
        }
        let listen = Listen::parse(&["192.0.2.1:7".to_owned()], 7, true, None).unwrap();
        assert_eq!(listen.shown(&listen.addresses), "192.0.2.1:7");
    }
}
