//! Charts of a comparison: one file per scenario family, one column per scenario.
//!
//! Each column has its own scale, from zero: a family spans two orders of magnitude, and the values to compare are next to each
//! other.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, WHITE};

use super::comparison::{Comparison, Figures, Line};
use super::format::{millis, thousands, times};

/// A scenario belongs to the first prefix that matches.
const FAMILIES: [&str; 9] = [
    "push",
    "pop-specific-autoack",
    "pop-specific",
    "pop-wildcard",
    "end-to-end",
    "drain",
    "fan-out",
    "burst",
    "parked",
];

const COLUMN: i32 = 190;
const MARGIN: i32 = 20;
const TITLE: i32 = 60;
const PANEL: i32 = 190;
const GAP: i32 = 50;
const BAR: i32 = 46;
const HEIGHT: i32 = TITLE + PANEL + GAP + PANEL + MARGIN;

const OURS: Paint = Paint { name: "ours", strong: RGBColor(31, 96, 196), light: RGBColor(165, 197, 244) };
const PEER: Paint = Paint { name: "peer", strong: RGBColor(120, 124, 130), light: RGBColor(208, 211, 215) };
const INK: RGBColor = RGBColor(40, 40, 40);

struct Paint {
    name: &'static str,
    strong: RGBColor,
    light: RGBColor,
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// `FOLDER/FAMILY.svg` for each family that was measured.
pub fn plot(comparison: &Comparison, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for family in FAMILIES {
        let lines: Vec<&Line> =
            comparison.lines.iter().filter(|line| self::family(&line.scenario) == Some(family)).collect();
        if !lines.is_empty() {
            let file = folder.join(format!("{family}.svg"));
            let svg = draw(family, &lines)?;
            std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

fn family(scenario: &str) -> Option<&'static str> {
    FAMILIES.into_iter().find(|family| scenario.starts_with(family))
}

fn draw(family: &str, lines: &[&Line]) -> Result<String> {
    let width = 2 * MARGIN + COLUMN * (lines.len() as i32).max(2);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (width as u32, HEIGHT as u32)).into_drawing_area();
        draw_on(&canvas, family, lines).map_err(|error| anyhow!("cannot draw {family}: {error}"))?;
    }
    Ok(svg)
}

fn draw_on(canvas: &Canvas<'_>, family: &str, lines: &[&Line]) -> Result<(), Box<dyn std::error::Error>> {
    canvas.fill(&WHITE)?;
    text(canvas, family, (MARGIN, MARGIN), 24, HPos::Left)?;
    let mut x = canvas.dim_in_pixel().0 as i32 - MARGIN - 130;
    for paint in [&OURS, &PEER] {
        rectangle(canvas, (x, MARGIN - 6), (x + 12, MARGIN + 6), paint.strong)?;
        text(canvas, paint.name, (x + 18, MARGIN), 16, HPos::Left)?;
        x += 70;
    }
    let (upper, lower) = (TITLE + PANEL, TITLE + PANEL + GAP + PANEL - MARGIN);
    text(canvas, "messages per second", (MARGIN, TITLE - 12), 15, HPos::Left)?;
    text(canvas, "latency in ms: p50 dark, p99 light", (MARGIN, upper + 34), 15, HPos::Left)?;
    for (index, line) in lines.iter().enumerate() {
        let left = MARGIN + COLUMN * index as i32;
        let title = match line.throughput_ratio {
            Some(ratio) => format!("{} ({})", line.scenario, times(ratio)),
            None => line.scenario.clone(),
        };
        text(canvas, &title, (left + COLUMN / 2, upper + 12), 16, HPos::Center)?;
        let brokers = [(&OURS, line.ours), (&PEER, line.peer)];
        let rate_max = highest(brokers, |figures| figures.messages_per_second.max);
        let latency_max = highest(brokers, |figures| figures.p99_us.median);
        for (bar, (paint, figures)) in brokers.into_iter().enumerate() {
            let Some(figures) = figures else { continue };
            let at = left + COLUMN / 2 + if bar == 0 { -BAR - 8 } else { 8 };
            draw_rate(canvas, paint, figures, at, upper, rate_max)?;
            draw_latency(canvas, paint, figures, at, lower, latency_max)?;
        }
    }
    canvas.present()?;
    Ok(())
}

/// A bar of the median with its range, and its number on top.
fn draw_rate(
    canvas: &Canvas<'_>,
    paint: &Paint,
    figures: Figures,
    left: i32,
    bottom: i32,
    highest: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let rate = figures.messages_per_second;
    let top = |value: f64| bottom - height(value, highest);
    rectangle(canvas, (left, top(rate.median)), (left + BAR, bottom), paint.strong)?;
    let middle = left + BAR / 2;
    if rate.min < rate.max {
        let range = vec![(middle, top(rate.min)), (middle, top(rate.max))];
        canvas.draw(&PathElement::new(range, ShapeStyle::from(&INK).stroke_width(2)))?;
    }
    text(canvas, &thousands(rate.median), (middle, top(rate.max) - 9), 15, HPos::Center)
}

/// The p50 before the p99, and both numbers on top.
fn draw_latency(
    canvas: &Canvas<'_>,
    paint: &Paint,
    figures: Figures,
    left: i32,
    bottom: i32,
    highest: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let top = |value: f64| bottom - height(value, highest);
    let (p50, p99) = (figures.p50_us.median, figures.p99_us.median);
    rectangle(canvas, (left, top(p99)), (left + BAR, bottom), paint.light)?;
    rectangle(canvas, (left, top(p50)), (left + BAR, bottom), paint.strong)?;
    text(canvas, &millis(p99), (left + BAR / 2, top(p99) - 9), 15, HPos::Center)?;
    text(canvas, &millis(p50), (left + BAR / 2, bottom + 10), 15, HPos::Center)
}

fn highest(brokers: [(&Paint, Option<Figures>); 2], value: impl Fn(Figures) -> f64) -> f64 {
    brokers.into_iter().filter_map(|(_, figures)| figures.map(&value)).fold(0.0, f64::max)
}

/// Pixels, leaving room for the number on top.
fn height(value: f64, highest: f64) -> i32 {
    let room = f64::from(PANEL - 50);
    if highest > 0.0 { ((value / highest * room) as i32).max(1) } else { 1 }
}

fn rectangle(
    canvas: &Canvas<'_>,
    from: (i32, i32),
    to: (i32, i32),
    color: RGBColor,
) -> Result<(), Box<dyn std::error::Error>> {
    Ok(canvas.draw(&Rectangle::new([from, to], color.filled()))?)
}

fn text(
    canvas: &Canvas<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    anchor: HPos,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", size, FontStyle::Normal).into_font().color(&INK);
    let style = style.pos(Pos::new(anchor, VPos::Center));
    Ok(canvas.draw(&Text::new(text.to_owned(), at, style))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Operation;
    use crate::report::compare;
    use crate::report::contender::tests::contender;
    use crate::report::summary::tests::row;
    use crate::scenarios;

    #[test]
    fn every_scenario_has_a_family() {
        assert!(scenarios::all().iter().all(|scenario| family(&scenario.to_string()).is_some()));
        assert_eq!(family("pop-specific-autoack-10"), Some("pop-specific-autoack"));
        assert_eq!(family("pop-specific-10"), Some("pop-specific"));
    }

    #[test]
    fn a_family_becomes_a_picture_even_with_gaps() {
        let ours = contender(vec![row("push-1", Operation::Push, 2_469_134, 2)], 1.0);
        let comparison = compare(&ours, &contender(Vec::new(), 1.0));
        let folder = tempfile::tempdir().unwrap();
        plot(&comparison, folder.path()).unwrap();
        let svg = std::fs::read_to_string(folder.path().join("push.svg")).unwrap();
        assert!(svg.contains("<svg") && svg.contains("push-1") && svg.contains("1,234,567"), "{svg}");
        assert!(!folder.path().join("drain.svg").exists());
    }
}
