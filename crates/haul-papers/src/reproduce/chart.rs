//! Lines over message sizes or clients as an SVG picture: places in powers of two; values in powers
//! of ten, or percent. Where there is nothing to go along, bars from zero on.

use super::record::{Along, Chart, Point, Series, figure};
use haul_report::axis::Kind;
use haul_report::chart::Heat;
use haul_report::svg::{COLOURS, STYLE, escaped, text};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 54.0;
/// Beyond the shared style: lines and their marks.
const MORE: &str = "<style>.line{fill:none;stroke-width:2;stroke-linejoin:round}.dash{stroke-dasharray:7 4}</style>";

/// Where values lie in the picture.
struct Scale {
    /// Exponents of two: the smallest size and the largest.
    sizes: (f64, f64),
    /// Exponents of ten, or percent.
    values: (f64, f64),
    percent: bool,
    /// Places in equal steps, too.
    equal: bool,
}

/// The picture.
pub(super) fn render(chart: &Chart) -> String {
    match chart.along {
        Along::Nothing => bars(chart),
        _ if chart.heat => heat(chart),
        _ => lines(chart),
    }
}

/// Series from below, places from left to right.
fn heat(chart: &Chart) -> String {
    let places = chart.sizes();
    let row = |series: &Series| {
        let value = |at: &u32| {
            series
                .points
                .iter()
                .find(|point| point.at == *at)
                .map(|point| point.value)
        };
        (series.name.clone(), places.iter().map(value).collect())
    };
    let heat = Heat {
        title: format!("{}, {}", chart.title, chart.unit),
        x: axis_words(chart.along).into(),
        y: String::new(),
        kind: Kind::Number,
        columns: places.iter().map(|&at| chart.place(at)).collect(),
        rows: chart.series.iter().map(row).collect(),
    };
    heat.svg()
}

/// A bar for each series: its median, and a line from the least run to the most.
fn bars(chart: &Chart) -> String {
    /// Room for the names, and of a bar.
    const NAMES: f64 = 150.0;
    const STEP: f64 = 30.0;
    let rows = || {
        let rows = chart.series.iter().zip(COLOURS);
        rows.filter_map(|(series, colour)| Some((series, series.points.first()?, colour)))
    };
    let runs = rows().flat_map(|(_, point, _)| &point.runs);
    let most = runs.map(|run| run.value).fold(0.0, f64::max);
    let height = 48.0 + STEP * f64_of(rows().count().max(1) as u64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n{STYLE}{MORE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escaped(&chart.title)
    );
    let title = format!("{}, {}", chart.title, chart.unit);
    svg += &text(8.0, 22.0, "panel", "start", &title);
    if most <= 0.0 {
        svg += &text(8.0, 52.0, "", "start", "nothing was measured");
        return svg + "</svg>\n";
    }
    // The last part is for figures.
    let wide = |value: f64| value.max(0.0) / most * (WIDTH - NAMES - 90.0);
    let mut y = 40.0;
    for (series, point, colour) in rows() {
        let middle = y + 9.0;
        svg += &text(NAMES - 10.0, y + 13.0, "", "end", &series.name);
        svg += &format!(
            "<rect fill=\"{colour}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\"/>\n",
            wide(point.value)
        );
        let values = || point.runs.iter().map(|run| run.value);
        let (least, most) = (
            values().fold(f64::MAX, f64::min),
            values().fold(0.0, f64::max),
        );
        svg += &format!(
            "<line class=\"rate\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\n",
            NAMES + wide(least),
            NAMES + wide(most)
        );
        let end = NAMES + wide(most.max(point.value)) + 8.0;
        svg += &text(end, y + 13.0, "", "start", &figure(point.value));
        y += STEP;
    }
    svg + "</svg>\n"
}

fn lines(chart: &Chart) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n{STYLE}{MORE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        escaped(&chart.title)
    );
    svg += &text(
        LEFT,
        22.0,
        "panel",
        "start",
        &format!("{}, {}", chart.title, chart.unit),
    );
    svg += &legend(chart);
    let Some(scale) = Scale::of(chart) else {
        svg += &text(LEFT, HEIGHT / 2.0, "", "start", "nothing was measured");
        return svg + "</svg>\n";
    };
    svg += &scale.grid(chart);
    for (series, colour) in chart.series.iter().zip(COLOURS) {
        svg += &draw(series, colour, &scale, chart.unit, chart.along);
    }
    svg + "</svg>\n"
}

fn legend(chart: &Chart) -> String {
    let (mut x, mut y) = (LEFT, 40.0);
    let mut svg = String::new();
    for (series, colour) in chart.series.iter().zip(COLOURS) {
        let wide = 52.0 + 7.0 * f64_of(series.name.chars().count() as u64);
        if x > LEFT && x + wide > WIDTH {
            (x, y) = (LEFT, y + 18.0);
        }
        let dash = if series.level { " dash" } else { "" };
        svg += &format!(
            "<line class=\"line{dash}\" stroke=\"{colour}\" x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\n",
            x + 24.0
        );
        svg += &text(x + 30.0, y + 4.0, "", "start", &series.name);
        x += wide;
    }
    svg
}

fn draw(series: &Series, colour: &str, scale: &Scale, unit: &str, along: Along) -> String {
    let mut points: Vec<&Point> = series.points.iter().collect();
    points.sort_by_key(|point| point.at);
    // On a scale of powers there is no zero: it has a hollow mark at the bottom, and no line.
    let shown = |point: &&&Point| scale.percent || point.value > 0.0;
    let at: Vec<String> = points
        .iter()
        .filter(shown)
        .map(|point| format!("{:.1},{:.1}", scale.x(point.at), scale.y(point.value)))
        .collect();
    let dash = if series.level { " dash" } else { "" };
    let mut svg = format!(
        "<polyline class=\"line{dash}\" stroke=\"{colour}\" points=\"{}\"/>\n",
        at.join(" ")
    );
    if series.level {
        return svg;
    }
    for point in points {
        let fill = if shown(&&point) { colour } else { "none" };
        let told = format!(
            "{}, {} {}: {} {unit}",
            series.name,
            point.at,
            along.head(),
            figure(point.value)
        );
        svg += &format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" stroke=\"{colour}\" fill=\"{fill}\"><title>{}</title></circle>\n",
            scale.x(point.at),
            scale.y(point.value),
            escaped(&told)
        );
    }
    svg
}

impl Scale {
    /// None where there is nothing to show.
    fn of(chart: &Chart) -> Option<Self> {
        let sizes = chart.sizes();
        let equal = matches!(chart.along, Along::Miles | Along::Cross | Along::Repetition);
        let place = |at: &u32| place(*at, equal);
        let (first, last) = (sizes.first().map(place)?, sizes.last().map(place)?);
        let points = chart.series.iter().flat_map(|series| &series.points);
        let values = points.map(|point| point.value).filter(|value| *value > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        let values = if chart.percent {
            (0.0, 100.0)
        } else if high > 0.0 {
            let (low, high) = (low.log10().floor(), high.log10().ceil());
            (low, high.max(low + 1.0))
        } else {
            return None;
        };
        Some(Self {
            sizes: (first, last.max(first + 1.0)),
            values,
            percent: chart.percent,
            equal,
        })
    }

    fn x(&self, bytes: u32) -> f64 {
        let share = (place(bytes, self.equal) - self.sizes.0) / (self.sizes.1 - self.sizes.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let at = if self.percent {
            value
        } else {
            value.max(f64::MIN_POSITIVE).log10()
        };
        let share = (at - self.values.0) / (self.values.1 - self.values.0);
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    /// Where there are lines across.
    fn levels(&self) -> Vec<f64> {
        if self.percent {
            return (0..=5_u8).map(|step| f64::from(step) * 20.0).collect();
        }
        let decades = self.values.1 - self.values.0;
        let steps: &[f64] = if decades > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let mut levels = Vec::new();
        let mut exponent = self.values.0;
        while exponent < self.values.1 {
            levels.extend(steps.iter().map(|step| step * 10_f64.powf(exponent)));
            exponent += 1.0;
        }
        levels.push(10_f64.powf(exponent));
        levels
    }

    fn grid(&self, chart: &Chart) -> String {
        let mut svg = String::new();
        for value in self.levels() {
            let y = self.y(value);
            svg += &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
                WIDTH - RIGHT
            );
            svg += &text(LEFT - 8.0, y + 4.0, "small", "end", &short(value));
        }
        let sizes = chart.sizes();
        let every = sizes.len().div_ceil(11).max(1);
        for bytes in sizes.into_iter().step_by(every) {
            let x = self.x(bytes);
            let place = match chart.along {
                Along::Bytes | Along::Burst => size(bytes),
                _ => chart.place(bytes),
            };
            svg += &text(x, HEIGHT - BOTTOM + 18.0, "small", "middle", &place);
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        svg + &text(
            middle,
            HEIGHT - 14.0,
            "small",
            "middle",
            axis_words(chart.along),
        )
    }
}

/// What stands below an axis.
fn axis_words(along: Along) -> &'static str {
    match along {
        Along::Bytes => "bytes of a message",
        Along::Clients => "clients",
        Along::Milliseconds => "milliseconds",
        Along::PerMillion => "packets lost of a million",
        Along::Connections => "connections at a time",
        Along::Burst => "burst that the policer lets pass",
        Along::Miles => "miles",
        Along::Cross => "other traffic, percent of the path's rate",
        Along::Repetition => "repetition",
        Along::Nothing => "",
    }
}

/// Where a place lies: an exponent of two, or itself.
fn place(at: u32, equal: bool) -> f64 {
    if equal {
        f64::from(at)
    } else {
        f64::from(at).max(1.0).log2()
    }
}

/// A round figure in few characters.
fn short(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        format!("{}", (value * 1e9).round() / 1e9)
    }
}

/// A power of two as people say it.
fn size(bytes: u32) -> String {
    match bytes {
        0x10_0000.. => format!("{} MiB", bytes >> 20),
        0x400.. => format!("{} KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "lengths of words")]
fn f64_of(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::super::record::Sample;
    use super::*;

    fn chart() -> Chart {
        let mut chart = Chart {
            title: "<Latency>".into(),
            unit: "µs",
            ..Chart::default()
        };
        for (bytes, value) in [(1, 20.0), (1024, 25.0), (1 << 20, 700.0)] {
            let sample = Sample {
                value,
                ..Sample::default()
            };
            chart.add("one", bytes, sample);
        }
        chart
    }

    #[test]
    fn values_lie_between_powers_of_ten_and_sizes_between_the_first_and_the_last() {
        let scale = Scale::of(&chart()).unwrap();
        assert_eq!((scale.sizes, scale.values), ((0.0, 20.0), (1.0, 3.0)));
        assert_eq!((scale.x(1), scale.x(1 << 20)), (LEFT, WIDTH - RIGHT));
        assert_eq!((scale.y(10.0), scale.y(1000.0)), (HEIGHT - BOTTOM, TOP));
        assert!(scale.y(0.0) <= HEIGHT - BOTTOM);
    }

    #[test]
    fn a_picture_has_every_point_and_words_that_cannot_break_it() {
        let svg = render(&chart());
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("&lt;Latency&gt;") && !svg.contains("<Latency>"));
        assert!(render(&Chart::default()).contains("nothing was measured"));
    }

    #[test]
    fn nothing_is_a_mark_without_a_line() {
        let mut chart = chart();
        chart.add("one", 4096, Sample::default());
        let svg = render(&chart);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("fill=\"none\"").count(), 1);
        let line = svg.split("points=\"").nth(1).unwrap().split('"').next();
        assert_eq!(line.unwrap().split(' ').count(), 3);
    }

    #[test]
    fn one_size_and_one_value_are_enough() {
        let mut chart = Chart::default();
        let sample = Sample {
            value: 1.0,
            ..Sample::default()
        };
        chart.add("one", 64, sample);
        assert!(!render(&chart).contains("NaN"));
    }
}
