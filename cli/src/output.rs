//! Standard output: tables and cards at a terminal, plain text in pipes, JSON with `--json`. One description of the data serves
//! all three, so they always agree. Remarks go to standard error.

use std::io::{self, IsTerminal, Write};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::text::{clean, columns, cut, decimal, one_line, thousands};
use super::times;

const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";
const GAP: &str = "  ";
/// Width of a table if the terminal's width is unknown.
const WIDTH_DEFAULT: usize = 100;
/// Minimum width of the last column.
const LAST_COLUMN_MIN: usize = 20;

/// One value, and how to format it.
#[derive(Debug, Clone)]
pub enum Cell {
    Text(String),
    Number(u64),
    /// A number that may have decimals: rates, milliseconds.
    Decimal(f64),
    /// An ISO 8601 time, as brokers return it.
    Time(String),
    Seconds(f64),
    Yes(bool),
    Payload(Box<RawValue>),
    /// Unknown, or none.
    None,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn maybe(text: Option<String>) -> Self {
        text.filter(|text| !text.is_empty()).map_or(Self::None, Self::Text)
    }

    pub fn time(time: Option<String>) -> Self {
        time.filter(|time| !time.is_empty()).map_or(Self::None, Self::Time)
    }

    fn is_number(&self) -> bool {
        matches!(self, Self::Number(_) | Self::Decimal(_) | Self::Seconds(_) | Self::None)
    }

    /// Text for people, shortened; programs get all of it.
    fn shown(&self, people: bool) -> String {
        match self {
            Self::Text(text) => clean(text).into_owned(),
            Self::Number(number) if people => thousands(*number),
            Self::Number(number) => number.to_string(),
            Self::Decimal(number) => decimal(*number, people),
            Self::Time(time) if people => times::ago(time),
            Self::Time(time) => clean(time).into_owned(),
            Self::Seconds(seconds) if people => times::span(*seconds),
            Self::Seconds(seconds) => seconds.to_string(),
            Self::Yes(yes) => if *yes { "yes" } else { "no" }.to_owned(),
            Self::Payload(payload) => clean(&one_line(payload.get())).into_owned(),
            Self::None => "-".to_owned(),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) | Self::Time(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Decimal(number) | Self::Seconds(number) => serializer.serialize_f64(*number),
            Self::Yes(yes) => serializer.serialize_bool(*yes),
            Self::Payload(payload) => payload.serialize(serializer),
            Self::None => serializer.serialize_none(),
        }
    }
}

/// Rows of the same columns. A column has a name for programs and a title for people; without a title it is for programs only.
#[derive(Debug)]
pub struct Table {
    columns: &'static [(&'static str, &'static str)],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &'static [(&'static str, &'static str)]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Lines without line breaks, the titles first. The last column is cut to `width`.
    fn lines(&self, people: bool, width: Option<usize>) -> Vec<String> {
        let shown: Vec<usize> =
            (0..self.columns.len()).filter(|&index| !self.columns[index].1.is_empty()).collect();
        let mut lines: Vec<Vec<String>> =
            vec![shown.iter().map(|&index| self.columns[index].1.to_owned()).collect()];
        lines.extend(
            self.rows.iter().map(|row| shown.iter().map(|&index| row[index].shown(people)).collect()),
        );
        let is_right =
            |&index: &usize| !self.is_empty() && self.rows.iter().all(|row| row[index].is_number());
        let right: Vec<bool> = shown.iter().map(is_right).collect();
        let wide = |column: usize| lines.iter().map(|line| columns(&line[column])).max().unwrap_or_default();
        let widths: Vec<usize> = (0..shown.len()).map(wide).collect();
        let line = |cells: Vec<String>| {
            let mut text = String::new();
            for (column, cell) in cells.into_iter().enumerate() {
                let room = width.map(|width| width.saturating_sub(columns(&text)).max(LAST_COLUMN_MIN));
                let cell = match room {
                    Some(room) if column + 1 == shown.len() => cut(cell, room),
                    _ => cell,
                };
                let padding = " ".repeat(widths[column].saturating_sub(columns(&cell)));
                match right[column] {
                    true => text.push_str(&format!("{padding}{cell}{GAP}")),
                    false => text.push_str(&format!("{cell}{padding}{GAP}")),
                }
            }
            text.truncate(text.trim_end().len());
            text
        };
        lines.into_iter().map(line).collect()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.rows.len()))?;
        for row in &self.rows {
            rows.serialize_element(&Row { columns: self.columns, cells: row })?;
        }
        rows.end()
    }
}

struct Row<'a> {
    columns: &'static [(&'static str, &'static str)],
    cells: &'a [Cell],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.columns.iter().map(|(name, _)| name).zip(self.cells))
    }
}

/// One object: its fields, and tables of what belongs to it.
#[derive(Debug, Default)]
pub struct Card {
    fields: Vec<(&'static str, &'static str, Cell)>,
    tables: Vec<(&'static str, &'static str, Table)>,
}

impl Card {
    /// `name` is for programs, `label` for people.
    pub fn field(mut self, name: &'static str, label: &'static str, cell: Cell) -> Self {
        self.fields.push((name, label, cell));
        self
    }

    pub fn table(mut self, name: &'static str, title: &'static str, table: Table) -> Self {
        self.tables.push((name, title, table));
        self
    }
}

impl Serialize for Card {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, _, cell) in &self.fields {
            map.serialize_entry(name, cell)?;
        }
        for (name, _, table) in &self.tables {
            map.serialize_entry(name, table)?;
        }
        map.end()
    }
}

/// How to write, decided once per command.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub json: bool,
    /// Standard output is a terminal.
    pub people: bool,
    colour: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        let people = io::stdout().is_terminal() && !json;
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { json, people, colour: people && !plain }
    }

    pub fn table(&self, table: &Table) -> io::Result<()> {
        match self.json {
            true => self.document(table),
            false => self.write(&self.text_of(table)),
        }
    }

    pub fn card(&self, card: &Card) -> io::Result<()> {
        if self.json {
            return self.document(card);
        }
        let wide = card.fields.iter().map(|(_, label, _)| label.len()).max().unwrap_or_default();
        let mut text = String::new();
        for (_, label, cell) in &card.fields {
            text.push_str(&format!(
                "{}{GAP}{}\n",
                self.dim(&format!("{label:<wide$}")),
                cell.shown(self.people)
            ));
        }
        for (_, title, table) in card.tables.iter().filter(|(_, _, table)| !table.is_empty()) {
            text.push_str(&format!("\n{}\n{}", self.bold(title), self.text_of(table)));
        }
        self.write(&text)
    }

    /// A line of JSON, flushed at once. Payloads are as their producer sent them, without line breaks.
    pub fn line(&self, value: &impl Serialize) -> io::Result<()> {
        self.write(&format!("{}\n", one_line(&serde_json::to_string(value)?)))
    }

    pub fn document(&self, value: &impl Serialize) -> io::Result<()> {
        let mut document = serde_json::to_vec_pretty(value)?;
        document.push(b'\n');
        self.bytes(&document)
    }

    /// The result of a change: a document for programs, a sentence for people.
    pub fn done(&self, document: &Value, text: &str) -> io::Result<()> {
        match self.json {
            true => self.document(document),
            false => {
                note(text);
                Ok(())
            }
        }
    }

    pub fn write(&self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    pub fn dim(&self, text: &str) -> String {
        self.styled(DIM, text)
    }

    fn bold(&self, text: &str) -> String {
        self.styled(BOLD, text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn text_of(&self, table: &Table) -> String {
        let width = self.people.then(terminal_width);
        let mut lines = table.lines(self.people, width).into_iter();
        let title = lines.next().map(|title| self.bold(&title));
        title.into_iter().chain(lines).map(|line| line + "\n").collect()
    }
}

/// A note on standard error. A failure to write it is ignored.
pub fn note(text: impl AsRef<str>) {
    // A single write, so that the output of other processes does not get in between.
    _ = io::stderr().write_all(format!("queen: {}\n", text.as_ref()).as_bytes());
}

/// A note that is only useful at a terminal, and not in a log.
pub fn remark(text: impl AsRef<str>) {
    if io::stderr().is_terminal() {
        note(text);
    }
}

pub fn terminal_width() -> usize {
    ratatui::crossterm::terminal::size().map_or(WIDTH_DEFAULT, |(width, _)| usize::from(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[("name", "NAME"), ("id", ""), ("pending", "PENDING"), ("last", "LAST")]);
        table.row([Cell::text("orders"), Cell::Number(1), Cell::Number(1_234_567), Cell::None]);
        table.row([Cell::text("注文"), Cell::Number(2), Cell::Number(7), Cell::text("a\u{1b}[31mb")]);
        table
    }

    #[test]
    fn columns_line_up_and_numbers_stand_on_the_right() {
        let lines = sample().lines(true, None);
        assert_eq!(
            lines,
            ["NAME      PENDING  LAST", "orders  1,234,567  -", "注文            7  a\\u{1b}[31mb"]
        );
        assert_eq!(sample().lines(false, None)[1], "orders  1234567  -");
    }

    #[test]
    fn the_last_column_is_cut_to_the_terminal_and_to_nothing_less_than_can_be_read() {
        let mut table = Table::new(&[("name", "NAME"), ("text", "TEXT")]);
        table.row([Cell::text("a"), Cell::text("x".repeat(50))]);
        let line = |width| table.lines(true, Some(width)).remove(1);
        assert_eq!(line(30), format!("a     {}…", "x".repeat(23)));
        assert_eq!(line(5), format!("a     {}…", "x".repeat(LAST_COLUMN_MIN - 1)));
    }

    #[test]
    fn programs_get_the_whole_value_under_the_name_of_its_column() {
        let table = serde_json::to_value(sample()).unwrap();
        assert_eq!(
            table[0],
            serde_json::json!({"name": "orders", "id": 1, "pending": 1_234_567, "last": null})
        );
        let raw = RawValue::from_string(r#"{"n":1.000000000000000000001}"#.to_owned()).unwrap();
        let card = Card::default().field("data", "data", Cell::Payload(raw)).table("rows", "ROWS", sample());
        let text = serde_json::to_string(&card).unwrap();
        assert!(text.starts_with(r#"{"data":{"n":1.000000000000000000001},"rows":[{"#), "{text}");
    }
}
