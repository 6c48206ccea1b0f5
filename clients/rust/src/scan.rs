//! A JSON scanner that builds no values. Responses are large, and most of their contents are never used.
//!
//! It finds where values begin and end. The inside of a payload is validated when it is decoded.

use std::fmt;

use memchr::memchr2;

/// A string in a response: its position, or its unescaped text.
#[derive(Debug)]
pub enum Text {
    At(Place),
    Own(Box<str>),
}

/// A position in a response. Small, because there are many; no response has 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    start: u32,
    end: u32,
}

impl Place {
    pub fn of(self, answer: &str) -> &str {
        answer.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Without its last byte.
    pub fn shorter(self) -> Self {
        Self { end: self.end.max(self.start + 1) - 1, ..self }
    }
}

impl Text {
    pub fn of<'a>(&'a self, answer: &'a str) -> &'a str {
        match self {
            Self::At(place) => place.of(answer),
            Self::Own(text) => text,
        }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::Own(text.into())
    }
}

/// Why a response cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    why: &'static str,
    at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}", self.why, self.at)
    }
}

pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Result<Self, Malformed> {
        let scanner = Self { text, at: 0 };
        match u32::try_from(text.len()) {
            Ok(_) => Ok(scanner),
            Err(_) => Err(scanner.malformed("4 GiB and more")),
        }
    }

    pub fn malformed(&self, why: &'static str) -> Malformed {
        Malformed { why, at: self.at }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is not whitespace.
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.byte()
    }

    fn expect(&mut self, byte: u8, why: &'static str) -> Result<(), Malformed> {
        match self.peek() == Some(byte) {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(self.malformed(why)),
        }
    }

    /// `read` reads or skips the value of every key. Keys are passed as written, with escapes.
    pub fn object(
        &mut self,
        mut read: impl FnMut(&mut Self, &'a str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.expect(b'{', "no object")?;
        self.members(b'}', |scanner| {
            let key = scanner.key()?;
            scanner.expect(b':', "a key without a value")?;
            read(scanner, key)
        })
    }

    /// Keys are short, so a byte loop is faster than a search.
    fn key(&mut self) -> Result<&'a str, Malformed> {
        self.expect(b'"', "no text")?;
        let start = self.at;
        while self.byte().is_some_and(|byte| byte != b'"') {
            self.at += if self.byte() == Some(b'\\') { 2 } else { 1 };
        }
        let key = self.text.get(start..self.at).filter(|_| self.byte().is_some());
        self.at += 1;
        key.ok_or(Malformed { why: "a text without an end", at: start })
    }

    /// The current position.
    pub fn here(&self) -> usize {
        self.at
    }

    /// The text from a position up to the current one.
    pub fn since(&self, start: usize) -> Place {
        let [start, end] = [start, self.at].map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        Place { start, end }
    }

    /// In an object: if the rest equals an earlier tail, skips it.
    pub fn repeats(&mut self, before: Place) -> bool {
        let (bytes, before) = (self.text.as_bytes(), before.of(self.text).as_bytes());
        let end = self.at + before.len();
        // A number may be a prefix of another one, so the closing brace belongs to the tail.
        let same = bytes.get(end) == Some(&b'}') && bytes.get(self.at..end) == Some(before);
        if same {
            self.at = end;
        }
        same
    }

    /// `read` reads every value.
    pub fn array(&mut self, read: impl FnMut(&mut Self) -> Result<(), Malformed>) -> Result<(), Malformed> {
        self.expect(b'[', "no list")?;
        self.members(b']', read)
    }

    fn members(
        &mut self,
        end: u8,
        mut read: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        loop {
            read(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.malformed("neither a comma nor an end")),
            }
        }
    }

    /// Checks that nothing follows.
    pub fn end(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.malformed("something behind the end")),
        }
    }

    /// `None` for null.
    pub fn text(&mut self) -> Result<Option<Text>, Malformed> {
        if self.peek() == Some(b'n') {
            return self.word().map(|_| None);
        }
        let (place, escaped) = self.raw()?;
        if !escaped {
            return Ok(Some(Text::At(place)));
        }
        let quoted = self.text.get(place.start as usize - 1..place.end as usize + 1).unwrap_or_default();
        let text: String = serde_json::from_str(quoted).map_err(|_| self.malformed("a bad escape"))?;
        Ok(Some(text.into()))
    }

    /// `None` for null.
    pub fn number<N: std::str::FromStr>(&mut self) -> Result<Option<N>, Malformed> {
        match self.word()?.of(self.text) {
            "null" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| self.malformed("no such number")),
        }
    }

    /// `None` for null.
    pub fn flag(&mut self) -> Result<Option<bool>, Malformed> {
        match self.word()?.of(self.text) {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            "null" => Ok(None),
            _ => Err(self.malformed("neither true nor false")),
        }
    }

    /// Skips any value.
    pub fn skip(&mut self) -> Result<Place, Malformed> {
        match self.peek() {
            Some(b'{' | b'[') => {}
            Some(b'"') => {
                let (place, _) = self.raw()?;
                return Ok(Place { start: place.start - 1, end: place.end + 1 });
            }
            _ => return self.word(),
        }
        let (start, mut depth) = (self.at, 0_u32);
        loop {
            match self.byte() {
                None => return Err(self.malformed("a value without an end")),
                Some(b'"') => {
                    self.raw()?;
                    continue;
                }
                Some(b'{' | b'[') => depth += 1,
                Some(b'}' | b']') => depth -= 1,
                Some(_) => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(self.since(start));
            }
        }
    }

    /// A number, or a literal of JSON.
    fn word(&mut self) -> Result<Place, Malformed> {
        self.peek();
        let start = self.at;
        while matches!(self.byte(), Some(b'a'..=b'z' | b'0'..=b'9' | b'-' | b'+' | b'.' | b'E')) {
            self.at += 1;
        }
        match self.at == start {
            true => Err(self.malformed("no value")),
            false => Ok(self.since(start)),
        }
    }

    /// The text between quotes, and whether it has escapes.
    fn raw(&mut self) -> Result<(Place, bool), Malformed> {
        self.expect(b'"', "no text")?;
        let (start, mut escaped) = (self.at, false);
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let Some(found) = memchr2(b'"', b'\\', rest) else {
                return Err(self.malformed("a text without an end"));
            };
            self.at += found + 1;
            if rest[found] == b'"' {
                return Ok((self.since(start).shorter(), escaped));
            }
            escaped = true;
            // An escaped character does not end the string.
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;

    fn fields(text: &str) -> Result<BTreeMap<String, String>, Malformed> {
        let mut fields = BTreeMap::new();
        let mut scanner = Scanner::new(text)?;
        scanner.object(|scanner, key| {
            let value = scanner.skip()?;
            fields.insert(key.to_owned(), value.of(text).to_owned());
            Ok(())
        })?;
        scanner.end().map(|()| fields)
    }

    #[test]
    fn values_are_found_whatever_they_hold() {
        let text = " {\"a\" : [1, {\"]\": \"}\\\"\"}] ,\"b\":-1.5e+3,\"c\":\"x\\\\\",\"d\":{},\"e\":null,\"ü\":\"ü\"} ";
        let fields = fields(text).unwrap();
        let told: Vec<_> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(told.join(" "), r#"a=[1, {"]": "}\""}] b=-1.5e+3 c="x\\" d={} e=null ü="ü""#);
    }

    #[test]
    fn what_is_broken_is_said_and_where() {
        for (text, why) in [
            ("", "no object at byte 0"),
            ("[]", "no object at byte 0"),
            ("{\"a\":1", "neither a comma nor an end at byte 6"),
            ("{\"a\":}", "no value at byte 5"),
            ("{\"a\":1,}", "no text at byte 7"),
            ("{\"a\" 1}", "a key without a value at byte 5"),
            ("{\"a\":[1", "a value without an end at byte 7"),
            ("{\"a\":[1}", "neither a comma nor an end at byte 8"),
            ("{\"a\":\"x}", "a text without an end at byte 6"),
            ("{\"a\":\"x\\", "a text without an end at byte 9"),
            ("{} {}", "something behind the end at byte 3"),
        ] {
            assert_eq!(fields(text).map_err(|error| error.to_string()), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_left_of_an_object_repeats_only_if_all_of_it_does() {
        let repeats = |text: &str| {
            let mut scanner = Scanner { text, at: 3 };
            let before = scanner.since(0);
            scanner.repeats(before).then_some(scanner.at)
        };
        assert_eq!(repeats("1,21,2}"), Some(6));
        for other in ["1,21,22}", "1,21,2,3}", "1,21,3}", "1,21,2", "1,21"] {
            assert_eq!(repeats(other), None, "{other}");
        }
    }

    #[test]
    fn texts_numbers_and_flags_may_be_null() {
        let text = r#"["a\u00fc\n", "b", null, 7, null, true, null]"#;
        let (mut scanner, mut at, mut told) = (Scanner::new(text).unwrap(), 0, Vec::new());
        scanner
            .array(|scanner| {
                at += 1;
                told.push(match at {
                    1..=3 => format!("{:?}", scanner.text()?.map(|read| read.of(text).to_owned())),
                    4 | 5 => format!("{:?}", scanner.number::<u8>()?),
                    _ => format!("{:?}", scanner.flag()?),
                });
                Ok(())
            })
            .unwrap();
        assert_eq!(told.join(" "), r#"Some("aü\n") Some("b") None Some(7) None Some(true) None"#);
        for bad in ["256", "-1", "x", "{}"] {
            assert!(Scanner::new(bad).unwrap().number::<u8>().is_err(), "{bad}");
        }
        assert!(Scanner::new(r#""\x""#).unwrap().text().is_err());
        assert!(Scanner::new("1").unwrap().flag().is_err());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_serde_finds(values in prop::collection::btree_map("[a-z]{1,4}", json(), 0..6), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&values) } else { serde_json::to_string(&values) };
            let text = text.unwrap();
            let expected: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap();
            let expected: BTreeMap<_, _> = expected.into_iter().map(|(key, raw)| (key, raw.get().to_owned())).collect();
            prop_assert_eq!(fields(&text).unwrap(), expected);
        }

        #[test]
        fn nothing_makes_it_panic(text: String, json in json(), cut: prop::sample::Index) {
            _ = fields(&text);
            let json = json.to_string();
            let cut = cut.index(json.len() + 1);
            if json.is_char_boundary(cut) {
                _ = fields(&json[..cut]);
                _ = Scanner::new(&json[..cut]).unwrap().text();
            }
        }
    }
}
