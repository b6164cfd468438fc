//! Quantities of a scenario: those of `haul_report::quantity`, and the size of a queue.

pub use haul_report::quantity::{Probability, Rate, Size, Span};
use haul_report::quantity::{multiple, text_or_number};
use serde::{Deserialize, Deserializer};

/// Reads a probability of the command line.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn probability(text: &str) -> Result<f64, String> {
    Probability::parse(text).map(|probability| probability.0)
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueSize {
    /// `"3MiB"`
    Bytes(u64),
    /// `"100packets"`
    Packets(u64),
    /// `"1.5bdp"`: multiples of rate times round-trip time.
    Bdp(f64),
}

impl QueueSize {
    /// Reads the size of a queue.
    ///
    /// # Errors
    /// The error of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(times) = multiple(text, "bdp") {
            return Ok(Self::Bdp(times));
        }
        let packets = multiple(text, "packets").or_else(|| multiple(text, "packet"));
        if let Some(packets) = packets.and_then(whole) {
            return Ok(Self::Packets(packets));
        }
        Size::parse(text)
            .map(|size| Self::Bytes(size.bytes))
            .map_err(|_| {
                format!("`{text}` is not a queue: write \"1bdp\", \"3MiB\" or \"100packets\"")
            })
    }
}

/// To the nearest whole number, if it fits.
fn whole(value: f64) -> Option<u64> {
    let rounded = value.round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie in range"
    )]
    (0.0..1.8e19).contains(&rounded).then_some(rounded as u64)
}

impl<'de> Deserialize<'de> for QueueSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a queue such as \"1bdp\", \"3MiB\" or \"100packets\"";
        text_or_number(deserializer, expecting, Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_count_in_bytes_packets_or_products() {
        assert_eq!(QueueSize::parse("1.5bdp"), Ok(QueueSize::Bdp(1.5)));
        assert_eq!(QueueSize::parse("100 packets"), Ok(QueueSize::Packets(100)));
        assert_eq!(QueueSize::parse("2MiB"), Ok(QueueSize::Bytes(2 << 20)));
        assert!(QueueSize::parse("big").is_err());
    }
}
