//! Numbers on a line, and in words.

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero on.
    Linear,
    /// By powers of two; values of at least 1.
    PowersOfTwo,
    /// By powers of ten; zero lies at the lower end.
    PowersOfTen,
}

/// What values of an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Number,
    /// Bytes, in binary units.
    Bytes,
    /// Bits per second, in decimal units.
    Rate,
}

impl Unit {
    /// A value in few characters.
    #[must_use]
    pub fn short(self, value: f64) -> String {
        match self {
            Self::Number => number(value),
            Self::Bytes => bytes(value),
            Self::Rate => rate(value),
        }
    }
}

/// Where values between two ends lie between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    unit: Unit,
    low: f64,
    high: f64,
}

impl Axis {
    /// Takes in all values; `None` where there are none.
    pub(crate) fn of(scale: Scale, unit: Unit, values: impl Iterator<Item = f64>) -> Option<Self> {
        let values = values.filter(|value| value.is_finite());
        let shown = values.filter(|value| scale == Scale::Linear || *value > 0.0);
        let ends = shown.fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let (low, high) = ends?;
        let (low, high) = match scale {
            Scale::Linear => {
                let step = step(unit, high - low.min(0.0));
                (
                    (low.min(0.0) / step).floor() * step,
                    (high / step).ceil().max(1.0) * step,
                )
            }
            Scale::PowersOfTwo => (low.log2(), high.log2().max(low.log2() + 1.0)),
            Scale::PowersOfTen => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                (low, high.max(low + 1.0))
            }
        };
        Some(Self {
            scale,
            unit,
            low,
            high,
        })
    }

    /// The same for what lies across: it ends with the largest value instead of the next round one,
    /// and begins with the smallest where zero is far from it.
    pub(crate) fn tight(
        scale: Scale,
        unit: Unit,
        values: impl Iterator<Item = f64> + Clone,
    ) -> Option<Self> {
        let mut axis = Self::of(scale, unit, values.clone())?;
        if scale == Scale::Linear {
            let low = values.clone().fold(f64::INFINITY, f64::min);
            axis.high = values.fold(f64::NEG_INFINITY, f64::max);
            axis.low = if (0.0..axis.high / 4.0).contains(&low) {
                0.0
            } else {
                low
            };
            if axis.high <= axis.low {
                axis.high = axis.low + 1.0;
            }
        }
        Some(axis)
    }

    /// Between 0 and 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => value,
            Scale::PowersOfTwo => value.max(1.0).log2(),
            Scale::PowersOfTen => value.max(f64::MIN_POSITIVE).log10(),
        };
        ((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Round values, at most a dozen.
    pub(crate) fn marks(&self) -> Vec<f64> {
        let counted = |first: f64, step: f64| {
            let mut marks = Vec::new();
            let mut mark = first;
            while mark <= self.high + step * 1e-6 && marks.len() < 30 {
                marks.push(mark);
                mark += step;
            }
            marks
        };
        match self.scale {
            Scale::Linear => {
                let step = step(self.unit, self.high - self.low);
                counted((self.low / step).ceil() * step, step)
            }
            Scale::PowersOfTwo => {
                let step = ((self.high - self.low) / 11.0).ceil().max(1.0);
                let marks = counted(self.low.ceil(), step);
                marks.into_iter().map(f64::exp2).collect()
            }
            Scale::PowersOfTen => {
                let inside: &[f64] = if self.high - self.low > 3.0 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let decades = counted(self.low, 1.0);
                let marks = decades
                    .iter()
                    .flat_map(|decade| inside.iter().map(|part| part * 10_f64.powf(*decade)));
                let highest = 10_f64.powf(self.high) * 1.000_001;
                marks.filter(|mark| *mark <= highest).collect()
            }
        }
    }
}

/// A round distance between marks: about six fit into `range`.
fn step(unit: Unit, range: f64) -> f64 {
    if range <= 0.0 || !range.is_finite() {
        return 1.0;
    }
    if unit == Unit::Bytes {
        return (range / 6.0).max(1.0).log2().ceil().exp2();
    }
    let power = 10_f64.powf((range / 6.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = |step: &&f64| range / (**step * power) <= 7.0;
    steps.iter().find(fits).unwrap_or(&10.0) * power
}

/// A number with three digits that matter, and no more zeros than it needs.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    if value.abs() < 1e-3 {
        let text = format!("{value:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!(
            "{}e{power}",
            digits.trim_end_matches('0').trim_end_matches('.')
        );
    }
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 9"
    )]
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').into();
    }
    text
}

/// Bytes in binary units.
#[must_use]
pub fn bytes(value: f64) -> String {
    in_units(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Bits per second in decimal units.
#[must_use]
pub fn rate(bps: f64) -> String {
    in_units(
        bps,
        1000.0,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

fn in_units(mut value: f64, factor: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= factor * 0.9995 && unit + 1 < units.len() {
        value /= factor;
        unit += 1;
    }
    format!("{} {}", number(value), units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.012_345, 1.0, 27.25, 999.96, 12_345.6].map(number);
        assert_eq!(texts, ["0", "0.0123", "1", "27.2", "1000", "12346"]);
        assert_eq!([1e-7, 1.234e-4].map(number), ["1e-7", "1.23e-4"]);
        assert_eq!(bytes(1024.0), "1 KiB");
        assert_eq!(bytes(8_388_608.0), "8 MiB");
        assert_eq!(rate(9.998e8), "1 Gbit/s");
        assert_eq!(rate(941.4e6), "941 Mbit/s");
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_at_a_round_value() {
        let axis = Axis::of(Scale::Linear, Unit::Number, [3.0, 9.4].into_iter()).unwrap();
        assert_eq!((axis.low, axis.high), (0.0, 10.0));
        assert_eq!(axis.marks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(axis.place(5.0), 0.5);
        assert!(Axis::of(Scale::Linear, Unit::Number, std::iter::empty()).is_none());
        assert_eq!(
            Axis::of(Scale::Linear, Unit::Number, [0.0].into_iter())
                .unwrap()
                .place(0.0),
            0.0
        );
    }

    #[test]
    fn bytes_have_binary_marks_and_time_begins_at_zero() {
        let axis = Axis::of(Scale::Linear, Unit::Bytes, [25e6].into_iter()).unwrap();
        assert_eq!(bytes(axis.marks()[1]), "4 MiB");
        let axis = Axis::tight(Scale::Linear, Unit::Number, [0.2, 4.0].into_iter()).unwrap();
        assert_eq!((axis.low, axis.high), (0.0, 4.0));
        let axis = Axis::tight(Scale::Linear, Unit::Number, [3.0, 4.0].into_iter()).unwrap();
        assert_eq!((axis.low, axis.high), (3.0, 4.0));
    }

    #[test]
    fn powers_lie_evenly() {
        let axis = Axis::of(Scale::PowersOfTwo, Unit::Bytes, [1.0, 1024.0].into_iter()).unwrap();
        assert_eq!(axis.place(32.0), 0.5);
        assert_eq!(axis.marks().len(), 11);
        let axis = Axis::of(
            Scale::PowersOfTen,
            Unit::Rate,
            [0.0, 20.0, 900.0].into_iter(),
        )
        .unwrap();
        assert_eq!((axis.low, axis.high, axis.place(0.0)), (1.0, 3.0, 0.0));
        assert_eq!(axis.marks().len(), 7);
    }
}
