//! The controls by name.

use std::str::FromStr;

use crate::controller::{Controller, Rate};
use crate::daimd::Daimd;
use crate::fixed::Fixed;
use crate::model::Model;
use crate::window::{Bic, Cubic, HighSpeed, Htcp, Law, Reno, Scalable, Vegas, Window};

/// Which control to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Model of the path (BBR class): finds the rate by itself and holds it under random loss.
    #[default]
    Model,
    /// A declared rate, for dedicated circuits and policed paths.
    Fixed(Rate),
    /// UDT's own rate control.
    Daimd,
    /// CUBIC (RFC 9438).
    Cubic,
    /// Reno (RFC 5681).
    Reno,
    /// BIC.
    Bic,
    /// H-TCP.
    Htcp,
    /// HighSpeed TCP (RFC 3649).
    HighSpeed,
    /// Scalable TCP.
    Scalable,
    /// Vegas.
    Vegas,
}

/// No control has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName(String);

impl std::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = Algorithm::NAMED.iter().map(|(name, _)| *name).collect();
        write!(
            f,
            "no congestion control `{}`: there are {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownName {}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::NAMED
            .iter()
            .find_map(|&(known, algorithm)| (known == name).then_some(algorithm))
            .ok_or_else(|| UnknownName(name.into()))
    }
}

impl Algorithm {
    /// Every control that needs nothing but its name; Linux' names for those that it has too.
    pub const NAMED: [(&'static str, Self); 9] = [
        ("model", Self::Model),
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("bic", Self::Bic),
        ("htcp", Self::Htcp),
        ("highspeed", Self::HighSpeed),
        ("scalable", Self::Scalable),
        ("vegas", Self::Vegas),
        ("daimd", Self::Daimd),
    ];

    /// Whether congestion marks slow it down. What does not may not ask for them (RFC 3168 §5): a
    /// declared rate is kept, and UDT's own control knows only loss.
    #[must_use]
    pub fn heeds_marks(self) -> bool {
        !matches!(self, Self::Fixed(_) | Self::Daimd)
    }

    /// Makes the control for packets of `packet_bytes` wire bytes.
    #[must_use]
    pub fn build(self, packet_bytes: u64, seed: u64) -> Box<dyn Controller> {
        match self {
            Self::Model => Box::new(Model::new(packet_bytes, seed)),
            Self::Fixed(rate) => Box::new(Fixed::new(rate, packet_bytes)),
            Self::Daimd => Box::new(Daimd::new(packet_bytes, seed)),
            Self::Cubic => window(Cubic::default(), packet_bytes),
            Self::Reno => window(Reno, packet_bytes),
            Self::Bic => window(Bic::default(), packet_bytes),
            Self::Htcp => window(Htcp::default(), packet_bytes),
            Self::HighSpeed => window(HighSpeed::default(), packet_bytes),
            Self::Scalable => window(Scalable, packet_bytes),
            Self::Vegas => window(Vegas::default(), packet_bytes),
        }
    }
}

fn window<L: Law + 'static>(law: L, packet_bytes: u64) -> Box<dyn Controller> {
    Box::new(Window::new(law, packet_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_calls_itself_by_the_name_it_is_chosen_by() {
        for (name, algorithm) in Algorithm::NAMED {
            assert_eq!(name.parse(), Ok(algorithm));
            let state = algorithm.build(1_500, 1).snapshot().state;
            assert_eq!(state.split('/').next(), Some(name));
        }
        let error = "bbr".parse::<Algorithm>().unwrap_err().to_string();
        assert!(
            error.contains("`bbr`") && error.contains("vegas"),
            "{error}"
        );
    }
}
