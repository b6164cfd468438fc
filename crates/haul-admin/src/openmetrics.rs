//! Families of metrics, and their text in OpenMetrics 1.0.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::http::Response;

const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prefix of all metric names.
const PREFIX: &str = "haul";

/// Builds the response with the metrics that `collector` encodes.
#[must_use]
pub fn response(collector: Box<dyn Collector>) -> Response {
    match text(collector) {
        Ok(text) => Response::new(KIND, text),
        Err(error) => Response::refusal(503, &error.to_string()),
    }
}

fn text(collector: Box<dyn Collector>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(collector);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Names and values of the labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

/// A family of metrics with a sample for each `T`.
#[derive(Debug)]
pub struct Family<T> {
    /// Without prefix, unit and `_total`.
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    /// The value only grows.
    is_counter: bool,
    value: fn(&T) -> f64,
}

impl<T> Family<T> {
    /// Makes a family of values that go up and down.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Self {
        Self {
            name,
            help,
            unit: None,
            is_counter: false,
            value,
        }
    }

    /// Makes a family of values that only grow.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Self {
        Self {
            is_counter: true,
            ..Self::gauge(name, help, value)
        }
    }

    /// Sets bytes as the unit.
    #[must_use]
    pub fn bytes(mut self) -> Self {
        self.unit = Some(Unit::Bytes);
        self
    }

    /// Sets seconds as the unit.
    #[must_use]
    pub fn seconds(mut self) -> Self {
        self.unit = Some(Unit::Seconds);
        self
    }

    /// Writes the samples with their labels; nothing if there are none.
    ///
    /// # Errors
    /// That of the encoder.
    pub fn encode<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl IntoIterator<Item = (&'a Labels, &'a T)>,
    ) -> fmt::Result
    where
        T: 'a,
    {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let kind = if self.is_counter {
            MetricType::Counter
        } else {
            MetricType::Gauge
        };
        let mut family =
            encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), kind)?;
        for (labels, sample) in samples {
            let value = (self.value)(sample);
            let mut metric = family.encode_family(labels)?;
            if self.is_counter {
                metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)?;
            } else {
                metric.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

/// Writes a family of facts that do not change: one sample for each set of labels.
///
/// # Errors
/// That of the encoder.
pub fn info(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    all: &[Labels],
) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Info)?;
    all.iter().try_for_each(|labels| family.encode_info(labels))
}

/// Returns the value of a metric that is 1 while something `is_so`.
#[must_use]
pub fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}
