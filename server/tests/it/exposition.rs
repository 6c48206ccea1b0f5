//! Parses Prometheus' text format, as strictly as its own tools.

use std::collections::{BTreeMap, BTreeSet};

/// Names that we did not choose, so they do not end in `_total`.
const GIVEN: [&str; 3] =
    ["queen_sidecar_op_count", "queen_sidecar_op_items", "queen_sidecar_op_latency_microseconds"];

/// A page that is valid.
#[derive(Debug, Default)]
pub struct Exposition {
    /// Kinds by name.
    pub kinds: BTreeMap<String, String>,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Exposition {
    pub fn check(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let mut helped = BTreeSet::new();
        let mut family = String::new();
        for line in text.lines() {
            let said = |what: &str| format!("{what}: {line}");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').ok_or_else(|| said("no help"))?;
                if help.trim().is_empty() || !helped.insert(name.to_owned()) || !is_name(name) {
                    return Err(said("no help, or twice, or no name"));
                }
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| said("no type"))?;
                let total = name.ends_with("_total");
                let fits = match kind {
                    "counter" => total || GIVEN.contains(&name),
                    "gauge" | "histogram" => !total,
                    _ => false,
                };
                if !fits
                    || !helped.contains(name)
                    || page.kinds.insert(name.to_owned(), kind.to_owned()).is_some()
                {
                    return Err(said("a type that does not fit, without help, or twice"));
                }
                name.clone_into(&mut family);
            } else {
                let sample = sample(line).ok_or_else(|| said("cannot be read"))?;
                let kind = page.kinds.get(&family).ok_or_else(|| said("nothing was declared"))?;
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                if !suffixes.iter().any(|suffix| sample.name == format!("{family}{suffix}")) {
                    return Err(said("not where it was declared"));
                }
                if kind != "gauge" && (sample.value.is_nan() || sample.value < 0.0) {
                    return Err(said("counts cannot be negative"));
                }
                page.samples.push(sample);
            }
        }
        let series: BTreeSet<String> =
            page.samples.iter().map(|s| format!("{} {:?}", s.name, s.labels)).collect();
        if series.len() != page.samples.len() {
            return Err("a series is there twice".to_owned());
        }
        page.histograms()?;
        Ok(page)
    }

    /// The value of the one sample with this name and these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(name, value)| sample.labels.get(*name).is_some_and(|there| there == value))
        };
        let mut found = self.samples.iter().filter(fits);
        let value = found.next()?.value;
        found.next().is_none().then_some(value)
    }

    fn histograms(&self) -> Result<(), String> {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
            for sample in self.samples.iter().filter(|sample| sample.name == format!("{name}_bucket")) {
                let mut labels = sample.labels.clone();
                let bound =
                    labels.remove("le").and_then(|bound| number(&bound)).ok_or("a bucket without bound")?;
                series.entry(format!("{labels:?}")).or_default().push((bound, sample.value));
            }
            let singles = |suffix: &str| -> BTreeMap<String, f64> {
                let those = self.samples.iter().filter(|sample| sample.name == format!("{name}{suffix}"));
                those.map(|sample| (format!("{:?}", sample.labels), sample.value)).collect()
            };
            let (sums, counts) = (singles("_sum"), singles("_count"));
            if !series.keys().eq(sums.keys()) || !series.keys().eq(counts.keys()) {
                return Err(format!("{name}: buckets, sums and counts do not belong together"));
            }
            for (labels, buckets) in &series {
                let rising = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
                let last = buckets.last().copied().unwrap_or((0.0, 0.0));
                if !rising || last.0 != f64::INFINITY || last.1 != counts[labels] {
                    return Err(format!("{name}{labels}: {buckets:?}"));
                }
            }
        }
        Ok(())
    }
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let name = &line[..end];
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let mut value = String::new();
            let mut chars = after.char_indices();
            let close = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next()?.1 {
                        'n' => '\n',
                        same @ ('\\' | '"') => same,
                        _ => return None,
                    }),
                    (_, char) => value.push(char),
                }
            };
            let plain = label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !label.is_empty();
            if !plain || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = &after[close + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break rest = rest.strip_prefix('}')?,
            }
        }
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| Sample { name: name.to_owned(), labels, value })
}

fn number(text: &str) -> Option<f64> {
    if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() }
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

#[test]
fn a_page_that_does_not_hold_together_is_refused() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 1\na_total{x=\"2\\\"\"} 2\n";
    assert_eq!(Exposition::check(good).unwrap().value("a_total", &[("x", "2\"")]), Some(2.0));
    let histogram = |lines: &str| format!("# HELP h H.\n# TYPE h histogram\n{lines}\n");
    let whole = "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 9\nh_count 3";
    Exposition::check(&histogram(whole)).unwrap();
    for bad in [
        "a 1\n".to_owned(),
        "# HELP a A.\n# TYPE a counter\na 1\n".to_owned(),
        "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n".to_owned(),
        "# TYPE a gauge\na 1\n".to_owned(),
        "# HELP a \n# TYPE a gauge\na 1\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\na 1\na 2\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\na{b=\"c\"} 1\na{b=\"c\"} 1\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\nb 1\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\na one\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\na{b=\"c} 1\n".to_owned(),
        "# HELP a A.\n# TYPE a gauge\na{b-c=\"d\"} 1\n".to_owned(),
        format!("{good}{good}"),
        histogram("h_bucket{le=\"1\"} 1\nh_sum 9\nh_count 3"),
        histogram("h_bucket{le=\"1\"} 4\nh_bucket{le=\"+Inf\"} 3\nh_sum 9\nh_count 3"),
        histogram("h_bucket{le=\"2\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 9\nh_count 3"),
        histogram("h_bucket{le=\"+Inf\"} 3\nh_sum 9\nh_count 4"),
        histogram("h_bucket{le=\"+Inf\"} 3\nh_count 3"),
    ] {
        assert!(Exposition::check(&bad).is_err(), "{bad}");
    }
}
