//! Writes the text format of Prometheus: each name described once, labels escaped. It knows no metric.

use std::fmt::{Display, Write};

use queen_engine::Distribution;

#[derive(Default)]
pub struct Page(String);

/// The samples of one name.
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

/// Names and values.
type Labels<'a> = [(&'static str, &'a str)];

impl Page {
    /// `kind`: `gauge`, `counter` or `histogram`.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: self, name }
    }

    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, "gauge", help).sample(&[], value);
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// `unit`: how many of the histogram's are one of the metric's.
    pub fn histogram(&mut self, labels: &Labels<'_>, values: &Distribution, unit: f64) {
        for (bound, count) in values.bounds.iter().zip(&values.counts) {
            let bound = (*bound as f64 / unit).to_string();
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_bucket", labels, Some("+Inf"), values.count());
        self.line("_sum", labels, None, values.sum as f64 / unit);
        self.line("_count", labels, None, values.count());
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: impl Display) {
        let text = &mut self.page.0;
        text.push_str(self.name);
        text.push_str(suffix);
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut open = '{';
        for (name, value) in labels {
            let _ = write!(text, "{open}{name}=\"");
            value.chars().for_each(|char| match char {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            });
            text.push('"');
            open = ',';
        }
        if open == ',' {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queen_engine::Histogram;

    #[test]
    fn labels_are_escaped_and_names_described_once() {
        let mut page = Page::default();
        let mut family = page.family("n", "gauge", "What it is.");
        family.sample(&[("queue", "a\"b\\c\nd"), ("group", "")], 1);
        family.sample(&[], 2.5);
        let expected =
            "# HELP n What it is.\n# TYPE n gauge\nn{queue=\"a\\\"b\\\\c\\nd\",group=\"\"} 1\nn 2.5\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_all() {
        let histogram = Histogram::new(&[500, 2_000_000]);
        for value in [100, 700, 5_000_000] {
            histogram.add(value);
        }
        let mut page = Page::default();
        page.family("t", "histogram", "Times.").histogram(&[("op", "x")], &histogram.read(), 1e6);
        let text = page.into_text();
        let samples: Vec<&str> = text.lines().skip(2).collect();
        let expected = [
            "t_bucket{op=\"x\",le=\"0.0005\"} 1",
            "t_bucket{op=\"x\",le=\"2\"} 2",
            "t_bucket{op=\"x\",le=\"+Inf\"} 3",
            "t_sum{op=\"x\"} 5.0008",
            "t_count{op=\"x\"} 3",
        ];
        assert_eq!(samples, expected);
    }
}
