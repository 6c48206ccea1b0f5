//! A table as plain text and as Markdown. Knows no numbers.

use std::fmt::Write as _;

#[derive(Debug)]
pub struct Table {
    /// The first columns contain words and are left-aligned; numbers are right-aligned.
    words: usize,
    headings: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Table {
    pub fn new<'a>(words: usize, headings: impl IntoIterator<Item = &'a str>) -> Table {
        Table { words, headings: headings.into_iter().map(str::to_owned).collect(), lines: Vec::new() }
    }

    pub fn push(&mut self, line: Vec<String>) {
        debug_assert_eq!(line.len(), self.headings.len());
        self.lines.push(line);
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.headings).chain(&self.lines);
        let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let mut text = String::new();
        for line in lines() {
            let mut padded = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                let written = match column < self.words {
                    true => write!(padded, "{cell}{pad}  "),
                    false => write!(padded, "{pad}{cell}  "),
                };
                written.expect("a String takes every write");
            }
            text.push_str(padded.trim_end());
            text.push('\n');
        }
        text
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = |column| if column < self.words { "---|" } else { "---:|" };
        let rules: String = (0..self.headings.len()).map(rule).collect();
        let body: String = self.lines.iter().map(|cells| line(cells)).collect();
        format!("{}|{rules}\n{body}", line(&self.headings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(1, ["scenario", "msg/s"]);
        table.push(vec!["push-10".to_owned(), "1,234,567".to_owned()]);
        table.push(vec!["x".to_owned(), "–".to_owned()]);
        table
    }

    #[test]
    fn words_stand_left_and_numbers_right() {
        let expected = "scenario      msg/s\npush-10   1,234,567\nx                 –\n";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn markdown_keeps_the_alignment() {
        let expected = "| scenario | msg/s |\n|---|---:|\n| push-10 | 1,234,567 |\n| x | – |\n";
        assert_eq!(table().markdown(), expected);
    }
}
