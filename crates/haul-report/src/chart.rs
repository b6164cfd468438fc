//! Pictures: lines with bands, bars of parts, heat maps.

use crate::axis::{Axis, Scale, Unit};
use crate::svg::{COLOURS, escaped, text};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 24.0;

/// What an axis shows.
#[derive(Clone, Debug)]
pub struct Dimension {
    /// In words.
    pub name: String,
    /// How values lie.
    pub scale: Scale,
    /// What they are.
    pub unit: Unit,
}

impl Dimension {
    /// Evenly, in plain numbers.
    #[must_use]
    pub fn linear(name: &str, unit: Unit) -> Self {
        Self {
            name: name.into(),
            scale: Scale::Linear,
            unit,
        }
    }
}

/// Lines over something, each with a band where its values spread.
#[derive(Clone, Debug)]
pub struct Lines {
    /// What it shows.
    pub title: String,
    /// Across.
    pub x: Dimension,
    /// Upwards.
    pub y: Dimension,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// A reference rather than a measurement: dashed, without marks.
    pub reference: bool,
    /// So many points that marks would hide the line.
    pub dense: bool,
}

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// The lower end of the spread.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Point {
    /// A single value.
    #[must_use]
    pub fn single(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            low: y,
            high: y,
        }
    }
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{0}\">\n\
         <title>{0}</title>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n{1}",
        escaped(title),
        text(8.0, 20.0, "panel", "start", title)
    )
}

fn nothing(title: &str) -> String {
    open(title, 60.0) + &text(8.0, 44.0, "small", "start", "nothing was measured") + "</svg>\n"
}

impl Lines {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::tight(self.x.scale, self.x.unit, points().map(|point| point.x));
        let y = Axis::of(
            self.y.scale,
            self.y.unit,
            points().flat_map(|point| [point.y, point.low, point.high]),
        );
        let (Some(x), Some(y)) = (x, y) else {
            return nothing(&self.title);
        };
        let (legend, rows) = self.legend();
        let frame = Frame {
            x,
            y,
            top: 40.0 + 20.0 * rows,
            bottom: 300.0 + 20.0 * rows,
        };
        let mut svg = open(&self.title, frame.bottom + 50.0) + &legend;
        svg += &self.grid(&frame);
        for (index, series) in self.series.iter().enumerate() {
            svg += &self.draw(series, COLOURS[index % COLOURS.len()], &frame);
        }
        svg + "</svg>\n"
    }

    /// The names of the lines, and how many rows they take.
    fn legend(&self) -> (String, f64) {
        if self.series.len() == 1 && self.series[0].name.is_empty() {
            return (String::new(), 0.0);
        }
        let (mut svg, mut x, mut row) = (String::new(), LEFT, 0.0);
        for (index, series) in self.series.iter().enumerate() {
            let wide = 50.0 + 7.2 * length(&series.name);
            if x + wide > WIDTH - RIGHT && x > LEFT {
                (x, row) = (LEFT, row + 1.0);
            }
            let y = 42.0 + 20.0 * row;
            let dash = if series.reference { " dash" } else { "" };
            svg += &format!(
                "<line class=\"line{dash}\" stroke=\"{}\" x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\n",
                COLOURS[index % COLOURS.len()],
                x + 22.0,
                y - 4.0,
                y - 4.0
            );
            svg += &text(x + 28.0, y, "small", "start", &series.name);
            x += wide;
        }
        (svg, row + 1.0)
    }

    fn grid(&self, frame: &Frame) -> String {
        let mut svg = String::new();
        for mark in frame.y.marks() {
            let y = frame.up(mark);
            svg += &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
                WIDTH - RIGHT
            );
            svg += &text(
                LEFT - 8.0,
                y + 4.0,
                "small",
                "end",
                &self.y.unit.short(mark),
            );
        }
        for mark in frame.x.marks() {
            let words = self.x.unit.short(mark);
            svg += &text(
                frame.across(mark),
                frame.bottom + 18.0,
                "small",
                "middle",
                &words,
            );
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        svg += &text(middle, frame.bottom + 40.0, "small", "middle", &self.x.name);
        svg + &text(WIDTH - RIGHT, 20.0, "small", "end", &self.y.name)
    }

    fn draw(&self, series: &Series, colour: &str, frame: &Frame) -> String {
        let place = |x: f64, y: f64| format!("{:.1},{:.1}", frame.across(x), frame.up(y));
        let mut svg = String::new();
        let spread = series.points.iter().any(|point| point.high > point.low);
        if spread {
            let up = series.points.iter().map(|point| place(point.x, point.high));
            let down = series
                .points
                .iter()
                .rev()
                .map(|point| place(point.x, point.low));
            let outline: Vec<String> = up.chain(down).collect();
            svg += &format!(
                "<polygon class=\"band\" fill=\"{colour}\" points=\"{}\"/>\n",
                outline.join(" ")
            );
        }
        // A scale of powers has no zero: it gets a hollow mark at the bottom and no line.
        let shown = |point: &&Point| self.y.scale != Scale::PowersOfTen || point.y > 0.0;
        let line: Vec<String> = series
            .points
            .iter()
            .filter(shown)
            .map(|point| place(point.x, point.y))
            .collect();
        let dash = if series.reference { " dash" } else { "" };
        svg += &format!(
            "<polyline class=\"line{dash}\" stroke=\"{colour}\" points=\"{}\"/>\n",
            line.join(" ")
        );
        if series.reference || series.dense {
            return svg;
        }
        for point in &series.points {
            let told = format!(
                "{} {}: {}",
                series.name,
                self.x.unit.short(point.x),
                self.y.unit.short(point.y)
            );
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" {}><title>{}</title></circle>\n",
                frame.across(point.x),
                frame.up(point.y),
                if shown(&point) {
                    format!("fill=\"{colour}\"")
                } else {
                    format!("stroke=\"{colour}\" fill=\"none\"")
                },
                escaped(told.trim())
            );
        }
        svg
    }
}

struct Frame {
    x: Axis,
    y: Axis,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn across(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, value: f64) -> f64 {
        self.bottom - self.y.place(value) * (self.bottom - self.top)
    }
}

/// Bars of parts, one below the other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What they show.
    pub title: String,
    /// What is counted, and in what.
    pub unit: String,
    /// The parts that a bar may have, in the order in which they stand.
    pub parts: Vec<String>,
    /// Bars: a name, and a value for each part.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        const STEP: f64 = 28.0;
        let total = |values: &[f64]| values.iter().map(|value| value.max(0.0)).sum::<f64>();
        let most = self
            .bars
            .iter()
            .map(|(_, values)| total(values))
            .fold(0.0, f64::max);
        if most <= 0.0 {
            return nothing(&self.title);
        }
        let names = self
            .bars
            .iter()
            .map(|(name, _)| length(name))
            .fold(0.0, f64::max);
        let left = (20.0 + 7.4 * names).min(WIDTH / 2.5);
        let wide = |value: f64| value.max(0.0) / most * (WIDTH - left - 100.0);
        #[expect(clippy::cast_precision_loss, reason = "a few bars")]
        let height = 64.0 + STEP * self.bars.len() as f64;
        let mut svg = open(&self.title, height);
        svg += &text(WIDTH - RIGHT, 20.0, "small", "end", &self.unit);
        let mut x = left;
        for (part, colour) in self.parts.iter().zip(COLOURS) {
            svg += &format!(
                "<rect fill=\"{colour}\" x=\"{x:.1}\" y=\"33\" width=\"12\" height=\"12\"/>\n"
            );
            svg += &text(x + 18.0, 43.0, "small", "start", part);
            x += 40.0 + 7.2 * length(part);
        }
        let mut y = 56.0;
        for (name, values) in &self.bars {
            svg += &text(left - 10.0, y + 13.0, "small", "end", name);
            let mut x = left;
            for ((value, part), colour) in values.iter().zip(&self.parts).zip(COLOURS) {
                let told = format!("{name}, {part}: {}", crate::axis::number(*value));
                svg += &format!(
                    "<rect fill=\"{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\"><title>{}</title></rect>\n",
                    wide(*value),
                    escaped(&told)
                );
                x += wide(*value);
            }
            svg += &text(
                x + 8.0,
                y + 13.0,
                "small",
                "start",
                &crate::axis::number(total(values)),
            );
            y += STEP;
        }
        svg + "</svg>\n"
    }
}

/// Values over two things, as colours with the values in them.
#[derive(Clone, Debug)]
pub struct Heat {
    /// What it shows.
    pub title: String,
    /// What stands across.
    pub x: String,
    /// What stands upwards.
    pub y: String,
    /// What the values are.
    pub unit: Unit,
    /// Columns, from left to right.
    pub columns: Vec<String>,
    /// Rows, from below, each with a value for each column, if it was measured.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Heat {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        const CELL: f64 = 30.0;
        let values = || {
            self.rows
                .iter()
                .flat_map(|(_, values)| values.iter().flatten().copied())
        };
        let most = values().fold(0.0, f64::max);
        if most <= 0.0 || self.columns.is_empty() {
            return nothing(&self.title);
        }
        #[expect(clippy::cast_precision_loss, reason = "a few cells")]
        let (columns, rows) = (self.columns.len() as f64, self.rows.len() as f64);
        let cell = ((WIDTH - LEFT - RIGHT) / columns).min(110.0);
        let (top, bottom) = (56.0, 56.0 + CELL * rows);
        let mut svg = open(&self.title, bottom + 52.0);
        svg += &text(8.0, 44.0, "small", "start", &self.y);
        let mut y = bottom;
        for (name, values) in &self.rows {
            y -= CELL;
            svg += &text(LEFT - 8.0, y + 20.0, "small", "end", name);
            let mut x = LEFT;
            for (value, column) in values.iter().zip(&self.columns) {
                let Some(value) = value else {
                    x += cell;
                    continue;
                };
                let share = (value / most).clamp(0.0, 1.0);
                let ink = if share > 0.55 { "onDark" } else { "onLight" };
                let words = self.unit.short(*value);
                svg += &format!(
                    "<rect fill=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
                    heat(share),
                    cell - 1.0,
                    CELL - 1.0,
                    escaped(&format!("{column}, {name}: {words}"))
                );
                // The unit stands in the title.
                let short = if cell < 84.0 { in_cell(&words) } else { words };
                svg += &text(x + cell / 2.0, y + 19.0, ink, "middle", &short);
                x += cell;
            }
        }
        debug_assert!(y >= top - 0.1);
        let mut x = LEFT;
        for column in &self.columns {
            svg += &text(x + cell / 2.0, bottom + 18.0, "small", "middle", column);
            x += cell;
        }
        svg += &text(
            LEFT + cell * columns / 2.0,
            bottom + 40.0,
            "small",
            "middle",
            &self.x,
        );
        svg + "</svg>\n"
    }
}

/// The number and the first letter of the unit.
fn in_cell(words: &str) -> String {
    match words.split_once(' ') {
        Some((number, unit)) => format!("{number}{}", unit.chars().next().unwrap_or(' ')),
        None => words.into(),
    }
}

/// From pale to dark blue, evenly to the eye; the same on light and dark paper, with words that can
/// be read on it.
fn heat(share: f64) -> String {
    const STOPS: [(f64, f64, f64); 4] = [
        (239.0, 243.0, 250.0),
        (158.0, 190.0, 224.0),
        (68.0, 119.0, 170.0),
        (16.0, 48.0, 92.0),
    ];
    let at = share.clamp(0.0, 1.0) * 3.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 2"
    )]
    let index = (at.floor() as usize).min(2);
    let (from, to) = (STOPS[index], STOPS[index + 1]);
    #[expect(clippy::cast_precision_loss, reason = "at most 2")]
    let part = at - index as f64;
    let mix = |a: f64, b: f64| (a + (b - a) * part).round();
    format!(
        "rgb({},{},{})",
        mix(from.0, to.0),
        mix(from.1, to.1),
        mix(from.2, to.2)
    )
}

#[expect(clippy::cast_precision_loss, reason = "lengths of words")]
fn length(words: &str) -> f64 {
    words.chars().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        let points = [(1.0, 2.0), (2.0, 3.0), (3.0, 1.0)];
        let point = |(x, y)| Point {
            x,
            y,
            low: y - 0.5,
            high: y + 0.5,
        };
        Lines {
            title: "<Goodput>".into(),
            x: Dimension::linear("streams", Unit::Number),
            y: Dimension::linear("goodput", Unit::Rate),
            series: vec![
                Series {
                    name: "tcp & co".into(),
                    points: points.map(point).to_vec(),
                    ..Series::default()
                },
                Series {
                    name: "limit".into(),
                    points: vec![Point::single(1.0, 4.0), Point::single(3.0, 4.0)],
                    reference: true,
                    dense: false,
                },
            ],
        }
    }

    #[test]
    fn a_picture_has_its_points_and_its_band_and_cannot_be_broken() {
        let svg = lines().svg();
        assert_eq!(
            (
                svg.matches("<circle").count(),
                svg.matches("<polygon").count()
            ),
            (3, 1)
        );
        assert!(svg.contains("&lt;Goodput&gt;") && svg.contains("tcp &amp; co"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let mut none = lines();
        none.series.clear();
        assert!(none.svg().contains("nothing was measured"));
    }

    #[test]
    fn bars_are_as_long_as_their_parts() {
        let bars = Bars {
            title: "CPU".into(),
            unit: "percent of a core".into(),
            parts: vec!["user".into(), "system".into()],
            bars: vec![
                ("sender".into(), vec![10.0, 30.0]),
                ("receiver".into(), vec![5.0, 15.0]),
            ],
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("height=\"18\"").count(), 4);
        assert!(svg.contains(">40</text>") && svg.contains(">20</text>"));
    }

    #[test]
    fn a_heat_map_leaves_out_what_was_not_measured() {
        let heat = Heat {
            title: "T(d, n)".into(),
            x: "streams".into(),
            y: "delay".into(),
            unit: Unit::Rate,
            columns: vec!["1".into(), "2".into()],
            rows: vec![
                ("10 ms".into(), vec![Some(1e9), None]),
                ("100 ms".into(), vec![Some(0.0), Some(5e8)]),
            ],
        };
        let svg = heat.svg();
        // Three cells with titles, and the title of the picture.
        assert_eq!(svg.matches("<title>").count(), 4);
        assert!(svg.contains("1 Gbit/s") && svg.contains("500 Mbit/s"));
    }
}
