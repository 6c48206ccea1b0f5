//! The Grafana dashboard and the alert rules only use metrics that a broker exposes.

use std::collections::BTreeSet;

use queen_testkit::{Database, cluster_with};
use serde_json::{Map, Value};

use crate::exposition::Exposition;
use crate::support::{Server, numbers};

/// Counted for all brokers and for each queue.
const COUNTED: [(&str, &[&str]); 18] = [
    ("queen_cluster_push_requests_total", &["scope"]),
    ("queen_cluster_push_messages_total", &["scope"]),
    ("queen_cluster_pop_requests_total", &["scope"]),
    ("queen_cluster_pop_messages_total", &["scope"]),
    ("queen_cluster_ack_requests_total", &["scope"]),
    ("queen_cluster_ack_messages_total", &["scope"]),
    ("queen_cluster_transactions_total", &["scope"]),
    ("queen_cluster_db_errors_total", &["scope"]),
    ("queen_cluster_dlq_total", &["scope"]),
    ("queen_queue_push_messages_per_minute", &["queue"]),
    ("queen_queue_pop_messages_per_minute", &["queue"]),
    ("queen_queue_pop_empty_per_minute", &["queue"]),
    ("queen_queue_ack_per_minute", &["queue"]),
    ("queen_queue_transactions_per_minute", &["queue"]),
    ("queen_queue_pop_lag_milliseconds", &["queue", "stat"]),
    ("queen_queue_parked_consumers", &["queue"]),
    ("queen_queue_pending", &["queue", "group"]),
    ("queen_queue_lag_seconds", &["queue", "group"]),
];
const DEAD_LETTERS: [(&str, &[&str]); 2] =
    [("queen_dlq_depth", &[]), ("queen_dlq_depth_by_queue", &["queue"])];

/// Added by Prometheus to everything it reads.
const ADDED: [&str; 2] = ["instance", "job"];

fn document(name: &str) -> String {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every expression of the dashboard, with the title of its panel.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&document("grafana/queen.json")).unwrap();
    let mut all = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_i64().unwrap()), "{} has another's id", panel["title"]);
        let place = &panel["gridPos"];
        assert!(place["x"].as_i64().unwrap() + place["w"].as_i64().unwrap() <= 24, "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            all.push((
                panel["title"].as_str().unwrap().to_owned(),
                target["expr"].as_str().unwrap().to_owned(),
            ));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["definition"].as_str() {
            all.push(("a variable".to_owned(), query.to_owned()));
        }
    }
    all
}

/// Every expression of the rules, with the name of its alert.
fn alerts() -> Vec<(String, String)> {
    let rules = yaml(&document("grafana/alerts.yaml"));
    let mut all = Vec::new();
    for group in rules["groups"].as_array().unwrap() {
        assert!(group["name"].is_string());
        for rule in group["rules"].as_array().unwrap() {
            let text = |pointer: &str| {
                let found = rule.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                assert!(!found.is_empty(), "{pointer} of {rule}");
                found.to_owned()
            };
            assert!(["critical", "warning"].contains(&text("/labels/severity").as_str()), "{rule}");
            assert!(text("/for").ends_with(['m', 'h']), "{rule}");
            text("/annotations/summary");
            text("/annotations/description");
            all.push((text("/alert"), text("/expr")));
        }
    }
    all
}

/// Names of metrics in an expression, each with the labels it is selected or grouped by.
fn asked(expression: &str) -> Vec<(String, Vec<String>)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("queen_") {
        let inside = rest[..at].chars().next_back().is_some_and(word);
        let end = rest[at..].find(|c| !word(c)).map_or(rest.len(), |end| at + end);
        let (name, after) = (&rest[at..end], &rest[end..]);
        let selected =
            after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = selected.split(',').filter_map(|pair| pair.split(['=', '!', '~']).next());
        if !inside {
            let labels = labels.map(str::trim).filter(|label| !label.is_empty());
            found.push((name.to_owned(), labels.map(str::to_owned).collect()));
        }
        rest = after;
    }
    found
}

#[tokio::test]
async fn every_requested_name_and_label_is_returned() {
    let cluster = cluster_with(&[("shared_buffers", "128MB")]).await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let url = database.url().to_owned();
    let server = Server::start_on(database.into(), &url, &["--doctor-interval", "0"]).await;
    server.push("q", "p", &numbers(0..3)).await;
    server.sql("select pg_create_physical_replication_slot('standby', true)").await;
    let report = server.get("/api/v1/system/doctor?fresh=true").await;
    assert_eq!(report.status, 200, "{}", report.text);
    let page = Exposition::check(&server.get("/metrics/prometheus").await.text).unwrap();

    for (place, expression) in dashboard().into_iter().chain(alerts()) {
        let (open, close) =
            (expression.matches(['(', '[', '{']).count(), expression.matches([')', ']', '}']).count());
        assert_eq!(open, close, "{place}: {expression}");
        let names = asked(&expression);
        assert!(!names.is_empty(), "{place}: {expression}");
        for (name, labels) in names {
            let counted = COUNTED.iter().chain(&DEAD_LETTERS).find(|(counted, _)| *counted == name);
            let told: Vec<&str> = match counted {
                Some((_, labels)) => labels.to_vec(),
                None => {
                    let samples = page.samples.iter().filter(|sample| sample.name == name);
                    let told: Vec<&str> = samples.flat_map(|s| s.labels.keys().map(String::as_str)).collect();
                    let there = page.samples.iter().any(|sample| sample.name == name);
                    assert!(there, "{place} asks for {name}");
                    told
                }
            };
            for label in labels {
                let known = told.contains(&label.as_str()) || ADDED.contains(&label.as_str());
                assert!(known, "{place} asks {name} for {label}");
            }
        }
    }
}

#[test]
fn every_alert_is_explained_and_its_name_is_its_own() {
    let handbook = document("operations.md");
    let names: Vec<String> = alerts().into_iter().map(|(name, _)| name).collect();
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    for name in names {
        assert!(handbook.contains(&format!("`{name}`")), "operations.md does not explain {name}");
    }
}

#[test]
fn names_are_found_where_they_stand() {
    let found = asked("sum by (le) (rate(queen_a_bucket{op=\"x\",le!=\"1\"}[5m])) / queen_b > not_queen_c");
    let expected = [("queen_a_bucket", vec!["op", "le"]), ("queen_b", vec![])];
    assert_eq!(found.len(), 2);
    for ((name, labels), (expected_name, expected_labels)) in found.iter().zip(&expected) {
        assert_eq!(
            (name.as_str(), labels),
            (*expected_name, &expected_labels.iter().map(|l| (*l).to_owned()).collect())
        );
    }
}

/// As much of YAML as the rules use: maps and lists by indentation, text plain or in single quotes. Anything else panics.
fn yaml(text: &str) -> Value {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .map(|line| (line.len() - line.trim_start().len(), line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let (value, rest) = block(&lines, 0);
    assert!(rest.is_empty(), "{rest:?}");
    value
}

type Lines<'a> = &'a [(usize, &'a str)];

/// The value at this indentation, and the lines after it.
fn block<'a>(mut lines: Lines<'a>, indent: usize) -> (Value, Lines<'a>) {
    let (mut list, mut map) = (Vec::new(), Map::new());
    while let Some((at, line)) = lines.first().filter(|(at, _)| *at >= indent) {
        assert_eq!(*at, indent, "{line}");
        if let Some(item) = line.strip_prefix("- ") {
            // An item is a map whose first key follows the dash.
            let end = lines[1..].iter().position(|(at, _)| *at <= indent).map_or(lines.len(), |end| end + 1);
            let mut inner = vec![(indent + 2, item)];
            inner.extend_from_slice(&lines[1..end]);
            let (value, rest) = block(&inner, indent + 2);
            assert!(rest.is_empty(), "{rest:?}");
            list.push(value);
            lines = &lines[end..];
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
        lines = &lines[1..];
        let value = match value.trim() {
            "" => {
                let (value, rest) = block(lines, lines.first().map_or(0, |(at, _)| *at));
                lines = rest;
                value
            }
            scalar => Value::String(plain(scalar)),
        };
        assert!(map.insert(key.to_owned(), value).is_none(), "{key} is there twice");
    }
    assert!(list.is_empty() || map.is_empty(), "a list and a map at once");
    (if list.is_empty() { Value::Object(map) } else { Value::Array(list) }, lines)
}

fn plain(scalar: &str) -> String {
    if let Some(inside) = scalar.strip_prefix('\'') {
        let inside = inside.strip_suffix('\'').unwrap_or_else(|| panic!("no closing quote: {scalar}"));
        assert!(!inside.replace("''", "").contains('\''), "{scalar}");
        return inside.replace("''", "'");
    }
    let special = scalar.contains(": ")
        || scalar.contains(" #")
        || scalar.starts_with(|c: char| "\"{}[]&*!|>%@`".contains(c));
    assert!(!special, "quote this: {scalar}");
    scalar.to_owned()
}

#[test]
fn the_rules_are_read_as_yaml_would() {
    let read = yaml("# why\na:\n  - b: 1m\n    c: 'it''s: {x}'\n  - b: two\n    d:\n      e: f\ng: h\n");
    let expected = serde_json::json!({
        "a": [{"b": "1m", "c": "it's: {x}"}, {"b": "two", "d": {"e": "f"}}], "g": "h",
    });
    assert_eq!(read, expected);
}
