//! Roles: what a caller may do at most. Each role includes the ones before it.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    ReadOnly,
    ReadWrite,
    Admin,
}

impl Role {
    /// As it is stored with an API key.
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
