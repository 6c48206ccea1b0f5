//! Cuts the fuzzer's bytes into values. Changing a byte changes one value, not all the values after it.

pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Up to a terminating byte, so that the fuzzer can make the value longer.
    pub fn bytes(&mut self) -> &'a [u8] {
        const END: u8 = 0xfe;
        let end = self.0.iter().position(|&byte| byte == END).unwrap_or(self.0.len());
        let (found, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        found
    }

    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}
