//! Text helpers: number formatting, display widths, quoting. Pure.

use std::borrow::Cow;

use ratatui::text::Span;

const LINE_BREAKS: [char; 2] = ['\n', '\r'];

/// Escapes control characters: names come from other people and must not move the cursor or change colors.
pub fn clean(text: &str) -> Cow<'_, str> {
    match text.chars().any(char::is_control) {
        false => Cow::Borrowed(text),
        true => text
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect::<String>()
            .into(),
    }
}

/// JSON on one line. A raw line break in JSON is always between tokens, where a space means the same.
pub fn one_line(json: &str) -> Cow<'_, str> {
    match json.contains(LINE_BREAKS) {
        false => Cow::Borrowed(json),
        true => json.replace(LINE_BREAKS, " ").into(),
    }
}

/// Quotes any text as one shell word.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn decimal(number: f64, people: bool) -> String {
    match people && number.abs() >= 100.0 {
        true => format!("{}{}", if number < 0.0 { "-" } else { "" }, thousands(number.abs().round() as u64)),
        false => format!("{number:.1}"),
    }
}

/// Width in terminal columns.
pub fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

pub fn cut(text: String, width: usize) -> String {
    if columns(&text) <= width {
        return text;
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if columns(&short) >= width {
            short.pop();
            break;
        }
    }
    short + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_comma_every_three_digits() {
        let all: Vec<_> = [0, 999, 1_000, 12_345, 1_000_000].map(thousands).into();
        assert_eq!(all, ["0", "999", "1,000", "12,345", "1,000,000"]);
        assert_eq!(
            (decimal(12_345.6, true), decimal(1.25, true), decimal(12_345.6, false)),
            ("12,346".to_owned(), "1.2".to_owned(), "12345.6".to_owned())
        );
    }

    #[test]
    fn what_would_steer_a_terminal_is_written_out() {
        assert_eq!(clean("a\u{1b}[31m\tb\u{9b}"), "a\\u{1b}[31m\\tb\\u{9b}");
        assert_eq!(clean("größe 注文"), "größe 注文");
    }

    #[test]
    fn json_fits_on_a_line_and_any_text_into_a_shell() {
        assert_eq!(one_line("{\r\n  \"a\": \"b\\n\"\n}"), "{    \"a\": \"b\\n\" }");
        assert!(matches!(one_line("[1, 2]"), Cow::Borrowed("[1, 2]")));
        assert_eq!(quoted("x'; rm -rf ~; '"), r"'x'\''; rm -rf ~; '\'''");
    }

    #[test]
    fn a_text_is_cut_to_columns_and_not_to_characters() {
        assert_eq!(cut("注文注文".to_owned(), 8), "注文注文");
        assert_eq!(columns(&cut("注文注文".to_owned(), 5)), 5);
        assert_eq!(cut("abc".to_owned(), 2), "a…");
    }
}
