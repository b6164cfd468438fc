//! Figures as SVG pictures: lines over message sizes or clients, heat maps, and bars where there
//! is no axis.

use super::record::{Along, Chart, Point, Series, figure};
use haul_report::axis::{Scale, Unit};
use haul_report::chart::{self, Dimension, Heat, Lines};
use haul_report::svg::{COLOURS, STYLE, escaped, text};

const WIDTH: f64 = 860.0;
/// Beyond the shared style: lines, their marks and their bands.
pub(super) const MORE: &str = "<style>.line{fill:none;stroke-width:2;stroke-linejoin:round}.dash{stroke-dasharray:7 4}.band{opacity:.18;stroke:none}</style>";

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
        unit: Unit::Number,
        columns: places.iter().map(|&at| chart.place(at)).collect(),
        rows: chart.series.iter().map(row).collect(),
    };
    heat.svg()
}

/// A bar for each series: its median, and a line from the least run to the most.
fn bars(chart: &Chart) -> String {
    /// Space for the names, and of a bar.
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
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n{STYLE}\n\
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

/// A line for each series, with a band from the least run to the most.
fn lines(chart: &Chart) -> String {
    let scale = match chart.along {
        Along::Miles | Along::Cross | Along::Repetition => Scale::Linear,
        _ => Scale::PowersOfTwo,
    };
    let unit = match chart.along {
        Along::Bytes | Along::Burst => Unit::Bytes,
        _ => Unit::Number,
    };
    let line = |series: &Series| {
        let mut points: Vec<&Point> = series.points.iter().collect();
        points.sort_by_key(|point| point.at);
        chart::Series {
            name: series.name.clone(),
            points: points.into_iter().map(spread).collect(),
            reference: series.level,
            dense: false,
        }
    };
    let lines = Lines {
        title: format!("{}, {}", chart.title, chart.unit),
        x: Dimension {
            name: axis_words(chart.along).into(),
            scale,
            unit,
        },
        y: Dimension {
            name: chart.unit.into(),
            scale: if chart.percent {
                Scale::Linear
            } else {
                Scale::PowersOfTen
            },
            unit: Unit::Number,
        },
        series: chart.series.iter().map(line).collect(),
    };
    lines.svg()
}

/// A point and the spread of its runs.
fn spread(point: &Point) -> chart::Point {
    let values = point.runs.iter().map(|run| run.value);
    let (low, high) = values.fold((point.value, point.value), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    chart::Point {
        x: f64::from(point.at),
        y: point.value,
        low,
        high,
    }
}

/// The label of an axis.
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

#[expect(clippy::cast_precision_loss, reason = "a few bars")]
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
