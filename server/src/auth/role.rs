//! What a caller may do at all. Each role may do what those before it may.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    ReadOnly,
    ReadWrite,
    Admin,
}

impl Role {
    /// As stored with a key.
    pub fn word(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
            Self::Admin => "admin",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [Self::ReadOnly, Self::ReadWrite, Self::Admin].into_iter().find(|role| role.word() == word)
    }
}
