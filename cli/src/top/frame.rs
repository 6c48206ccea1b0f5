//! Draws a view, on a terminal or as text. No decisions here.

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::super::text::{clean, thousands};
use super::super::times::span;
use super::view::{BrokerView, GroupView, LaneView, QueueView, View};

/// A title and an empty line below it.
const AROUND: u16 = 2;
const FOOT: u16 = 1;
const SPACING: u16 = 2;
/// Minimum width of a name.
const FIRST_MIN: u16 = 8;

/// The view as on a terminal that is high enough for all of it.
pub fn text(view: &View, width: usize) -> String {
    let height = heights(view).iter().sum::<u16>() + FOOT;
    let area = Rect::new(0, 0, u16::try_from(width).unwrap_or(u16::MAX), height);
    let mut buffer = Buffer::empty(area);
    draw(view, area, &mut buffer);
    let mut text = String::new();
    for y in 0..area.height {
        text.push_str(line(&buffer, y).trim_end());
        text.push('\n');
    }
    text
}

fn line(buffer: &Buffer, y: u16) -> String {
    (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect()
}

pub fn draw(view: &View, area: Rect, buffer: &mut Buffer) {
    // Even in a low terminal, the warning that numbers are stale must be visible.
    let [body, foot] = Layout::vertical([Constraint::Fill(1), Constraint::Length(FOOT)]).areas(area);
    let areas = Layout::vertical(heights(view).map(Constraint::Length)).split(body);
    Paragraph::new(head(view)).render(areas[0], buffer);
    table(["LANE", "ITEMS/S", "FLIGHTS/S", "MS/FLIGHT"], view.lanes.iter().map(lane), areas[1], buffer);
    let titles = ["BROKER", "STATE", "UP", "REQUESTS/S", "CPU", "MEMORY", "CONNECTIONS", "WAITING"];
    table(titles, view.brokers.iter().map(broker), areas[2], buffer);
    let titles = ["GROUP", "QUEUE", "UNREAD", "CHANGE/S", "WAITING", "STATE"];
    table(titles, view.groups.iter().map(group), areas[3], buffer);
    let titles = ["QUEUE", "PARTITIONS", "MESSAGES", "PENDING", "LEASED"];
    table(titles, view.queues.iter().map(queue), areas[4], buffer);
    let text = match &view.problem {
        Some(problem) => Line::from(clean(problem).into_owned()).fg(Color::Red),
        None => Line::from("q quits").dim(),
    };
    text.render(foot, buffer);
}

fn heights(view: &View) -> [u16; 5] {
    let table = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX - AROUND).saturating_add(AROUND);
    let rows = [view.lanes.len(), view.brokers.len(), view.groups.len(), view.queues.len()].map(table);
    [3, rows[0], rows[1], rows[2], rows[3]]
}

fn head(view: &View) -> Text<'static> {
    let all = &view.messages;
    let part = |count: u64, what: &str| format!("{} {what}", thousands(count));
    let first = [
        part(all.queues, "queues"),
        part(all.partitions, "partitions"),
        part(all.stored, "messages"),
        part(all.pending, "pending"),
        part(all.leased, "leased"),
    ];
    let trouble = [part(all.dead_letters, "dead letters"), part(all.deferred, "deferred operations")];
    Text::from(vec![Line::from(first.join(", ")).bold(), Line::from(trouble.join(", "))])
}

fn lane(lane: &LaneView) -> Vec<String> {
    vec![
        lane.lane.to_owned(),
        number(lane.items_per_second),
        number(lane.flights_per_second),
        lane.ms_per_flight.map_or(UNKNOWN.to_owned(), |ms| format!("{ms:.1}")),
    ]
}

fn broker(broker: &BrokerView) -> Vec<String> {
    let name = format!("{} {}", broker.url, broker.version);
    let state = match (&broker.problem, broker.database) {
        (Some(_), _) => "down",
        (None, false) => "no database",
        (None, true) => "healthy",
    };
    if !broker.up {
        return vec![name, state.to_owned()];
    }
    vec![
        name,
        state.to_owned(),
        span(broker.uptime_seconds),
        number(broker.requests_per_second),
        broker.cpu_percent.map_or(UNKNOWN.to_owned(), |percent| format!("{percent:.0}%")),
        format!("{} MB", thousands(broker.memory_bytes >> 20)),
        format!("{} of {}", broker.connections_busy, broker.connections),
        thousands(broker.waiting),
    ]
}

fn group(group: &GroupView) -> Vec<String> {
    vec![
        clean(&group.group).into_owned(),
        clean(&group.queue).into_owned(),
        thousands(group.unread),
        group.unread_per_second.map_or(UNKNOWN.to_owned(), |change| format!("{change:+.0}")),
        span(group.waiting_seconds),
        group.state.clone(),
    ]
}

fn queue(queue: &QueueView) -> Vec<String> {
    let counts = [queue.partitions, queue.stored, queue.pending, queue.leased].map(thousands);
    [vec![clean(&queue.queue).into_owned()], counts.into()].concat()
}

const UNKNOWN: &str = "-";

fn number(number: Option<f64>) -> String {
    match number {
        Some(number) if number < 10.0 => format!("{number:.1}"),
        Some(number) => thousands(number.round() as u64),
        None => UNKNOWN.to_owned(),
    }
}

/// Names on the left, numbers on the right. If space is short, the first column shrinks.
fn table<const N: usize>(
    titles: [&'static str; N],
    rows: impl Iterator<Item = Vec<String>>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let rows: Vec<Vec<String>> = rows.collect();
    let wide = |column: usize| {
        let cells =
            rows.iter().filter_map(|row| row.get(column)).map(|cell| Line::from(cell.as_str()).width());
        let wide = cells.chain([titles[column].len()]).max().unwrap_or_default();
        u16::try_from(wide).unwrap_or(u16::MAX)
    };
    let mut widths: Vec<u16> = (0..N).map(wide).collect();
    let whole =
        widths.iter().fold(0, |sum: u16, wide| sum.saturating_add(*wide).saturating_add(SPACING)) - SPACING;
    let least = widths[0].min(FIRST_MIN);
    widths[0] = widths[0].saturating_sub(whole.saturating_sub(area.width)).max(least);
    let starts_as_number = |cell: &String| cell.starts_with(|c: char| "+-0123456789".contains(c));
    let is_number =
        |column: usize| column > 0 && rows.iter().filter_map(|row| row.get(column)).all(starts_as_number);
    let aligned = |column: usize, cell: String| {
        let alignment = if is_number(column) { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(cell).alignment(alignment))
    };
    let row = |cells: Vec<String>| {
        let trouble = cells.iter().any(|cell| ["down", "no database", "lagging"].contains(&cell.as_str()));
        let row = Row::new(cells.into_iter().enumerate().map(|(column, cell)| aligned(column, cell)));
        if trouble { row.fg(Color::Red) } else { row }
    };
    let header = row(titles.map(str::to_owned).into()).style(Style::new().bold());
    let table = Table::new(rows.iter().cloned().map(row), widths).header(header).column_spacing(SPACING);
    table.render(area, buffer);
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::samples;
    use super::*;

    #[test]
    fn a_frame_is_text_with_everything_on_it() {
        let (before, now) = samples();
        let frame = text(&View::of(Some(&before), &now), 100);
        for part in [
            "LANE         ITEMS/S  FLIGHTS/S  MS/FLIGHT\npush             500         50        2.0\n",
            "http://a   healthy",
            "http://b   down",
            "billing  orders      60       -20     4.0s  stable\n",
            "busy             3       100       10       1\n",
            "q quits\n",
        ] {
            assert!(frame.contains(part), "{part:?} in\n{frame}");
        }
    }

    #[test]
    fn names_make_room_for_numbers_where_it_is_narrow() {
        let (before, mut now) = samples();
        now.brokers[0].url = format!("http://{}", "a".repeat(50));
        let frame = text(&View::of(Some(&before), &now), 80);
        assert!(frame.contains("REQUESTS/S  CPU") && frame.lines().all(|line| line.len() <= 80), "{frame}");
    }

    #[test]
    fn a_frame_that_does_not_fit_is_cut_and_still_says_that_it_is_old() {
        let (before, now) = samples();
        let mut view = View::of(Some(&before), &now);
        view.problem = Some("no broker responds".to_owned());
        for height in [24, 4, 1] {
            let area = Rect::new(0, 0, 20, height);
            let mut buffer = Buffer::empty(area);
            draw(&view, area, &mut buffer);
            assert_eq!(line(&buffer, height - 1).trim_end(), "no broker responds", "{height}");
        }
    }
}
