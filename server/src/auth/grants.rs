//! Grants: which queues a restricted caller may use, and how. Pure: it knows neither requests nor tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Rights are independent, except that `pop` includes `read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Push to the queue.
    Push,
    /// Pop from the queue, acknowledge, extend leases, add traces. Includes `read`.
    Pop,
    /// See messages with their payloads, dead letters and traces.
    Read,
    /// Change the queue: options, positions of groups, single messages, deletion.
    Admin,
}

/// What a request needs on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    This(Right),
    /// Any right: to see its options, groups and counts.
    Any,
}

/// Rights on some queues, as in the claim of a token. Unknown fields are refused, because they may be restrictions that would
/// not be enforced.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Patterns, in which `*` matches any characters, and nothing else is special.
    pub queues: Vec<String>,
    pub rights: Vec<Right>,
}

/// An empty list means no queue.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grants(pub Vec<Grant>);

impl Grants {
    pub fn allow(&self, need: Need, queue: &str) -> bool {
        self.0.iter().any(|grant| {
            let right = match need {
                Need::This(Right::Read) => {
                    grant.rights.iter().any(|right| matches!(right, Right::Read | Right::Pop))
                }
                Need::This(right) => grant.rights.contains(&right),
                Need::Any => !grant.rights.is_empty(),
            };
            right && grant.queues.iter().any(|pattern| matches(pattern, queue))
        })
    }

    /// The patterns of all queues that may be seen. No name has a NUL, and PostgreSQL allows none.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        let some = self.0.iter().filter(|grant| !grant.rights.is_empty());
        let patterns = some.flat_map(|grant| grant.queues.iter().map(String::as_str));
        patterns.filter(|pattern| !pattern.contains('\0'))
    }
}

impl Right {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "push" => Some(Self::Push),
            "pop" => Some(Self::Pop),
            "read" => Some(Self::Read),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

impl Need {
    /// As in "no right to … queue".
    pub fn words(self) -> &'static str {
        match self {
            Self::This(Right::Push) => "push to",
            Self::This(Right::Pop) => "pop from",
            Self::This(Right::Read) => "read messages of",
            Self::This(Right::Admin) => "administer",
            Self::Any => "see",
        }
    }
}

/// Backtracks to the last `*` only, so the time is bounded by the length of the pattern times that of the name.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_star_is_special() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a/b"),
            ("orders", "orders"),
            ("orders.*", "orders."),
            ("orders.*", "orders.eu.1"),
            ("*.eu", "a.eu.eu"),
            ("a*b*c", "aXbXbc"),
            ("", ""),
            ("ä*", "äö"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("orders", "orders2"),
            ("orders", "Orders"),
            ("orders.*", "orders"),
            ("o?ders", "orders"),
            ("[a-z]", "a"),
            ("%", "a"),
            ("_", "a"),
            ("", "a"),
            ("*.eu", "eu"),
            ("a*b*c", "acb"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_stars_does_not_take_forever() {
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999)));
    }

    #[test]
    fn rights_do_not_include_each_other() {
        let text =
            r#"[{"queues": ["a", "b.*"], "rights": ["push"]}, {"queues": ["c"], "rights": ["admin"]}]"#;
        let grants: Grants = serde_json::from_str(text).unwrap();
        assert!(grants.allow(Need::This(Right::Push), "b.1") && grants.allow(Need::Any, "c"));
        assert!(!grants.allow(Need::This(Right::Pop), "a") && !grants.allow(Need::This(Right::Push), "c"));
        assert!(!Grants::default().allow(Need::Any, "a"));
    }

    #[test]
    fn messages_are_read_with_read_or_pop_and_nothing_else() {
        for (right, reads) in [("push", false), ("admin", false), ("pop", true), ("read", true)] {
            let right = Right::parse(right).unwrap();
            let grants = Grants(vec![Grant { queues: vec!["a".to_owned()], rights: vec![right] }]);
            assert_eq!(grants.allow(Need::This(Right::Read), "a"), reads, "{right:?}");
            assert!(grants.allow(Need::Any, "a") && !grants.allow(Need::This(Right::Read), "b"));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            r#"{"queues": ["a"], "rights": ["push"]}"#,
            r#"[{"queues": "a", "rights": ["push"]}]"#,
            r#"[{"queues": ["a"], "rights": ["write"]}]"#,
            r#"[{"queues": ["a"]}]"#,
            r#"[{"queues": ["a"], "rights": ["push"], "partitions": ["p"]}]"#,
            "null",
        ] {
            assert!(serde_json::from_str::<Grants>(text).is_err(), "{text}");
        }
    }
}
