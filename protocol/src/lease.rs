//! Lease ids, and `POST /api/v1/lease/:leaseId/extend`.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{BadRequest, read_object};

/// Opaque to clients. It carries the numbers of its partitions, so that any broker finds the lease by key:
/// an index on the lease column would cost every pop a second index write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseId {
    pub id: Uuid,
    pub partitions: Vec<i64>,
    /// The lease holds traced messages. The id says so, because any broker may acknowledge them.
    pub traced: bool,
}

/// Not a hexadecimal number, so it cannot be mistaken for a partition.
const TRACED: &str = ".t";

impl LeaseId {
    /// `None` for text that no broker writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (numbers, traced) = match text.strip_suffix(TRACED) {
            Some(numbers) => (numbers, true),
            None => (text, false),
        };
        let mut parts = numbers.split('.');
        let id = Uuid::try_parse(parts.next()?).ok()?;
        let partitions = parts.map(number).collect::<Option<Vec<_>>>()?;
        Some(Self { id, partitions, traced })
    }
}

/// A number as `Display` writes it: not empty, and without a sign.
fn number(hex: &str) -> Option<i64> {
    let digits = !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    i64::from_str_radix(hex, 16).ok().filter(|_| digits)
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        for number in &self.partitions {
            write!(f, ".{number:x}")?;
        }
        f.write_str(if self.traced { TRACED } else { "" })
    }
}

#[derive(Debug, Default, Deserialize)]
pub struct RenewBody {
    pub seconds: Option<i64>,
}

impl RenewBody {
    /// A published client does not send an empty object, so an empty body means the defaults.
    pub fn parse(body: &[u8]) -> Result<Self, BadRequest> {
        if body.iter().all(u8::is_ascii_whitespace) { Ok(Self::default()) } else { read_object(body) }
    }

    /// At most a day. A partition that is leased for longer is as good as lost.
    pub fn seconds(&self) -> i32 {
        let seconds = self.seconds.filter(|&seconds| seconds > 0).unwrap_or(60);
        i32::try_from(seconds.min(86_400)).unwrap_or(86_400)
    }
}

/// Three names for one time, because three client families read three.
#[derive(Debug, Serialize)]
pub struct Renewed {
    #[serde(rename = "leaseId")]
    pub lease_id: String,
    pub success: bool,
    pub renewed: usize,
    #[serde(rename = "newExpiresAt")]
    pub new_expires_at: Option<String>,
    #[serde(rename = "expiresAt")]
    pub expires_at: Option<String>,
    pub lease_expires_at: Option<String>,
    pub error: Option<String>,
}

impl Renewed {
    pub fn new(lease_id: String, renewed: usize, until: Option<String>) -> Self {
        let success = renewed > 0;
        let error = (!success).then(|| "Invalid or expired lease".to_owned());
        Self {
            lease_id,
            success,
            renewed,
            new_expires_at: until.clone(),
            expires_at: until.clone(),
            lease_expires_at: until,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_survives_its_text_and_a_foreign_one_is_none() {
        for traced in [false, true] {
            let partitions = vec![1, 255, i64::from(u32::MAX)];
            let lease = LeaseId { id: Uuid::from_u128(7), partitions, traced };
            assert_eq!(LeaseId::parse(&lease.to_string()), Some(lease));
        }
        for text in [
            "",
            "x",
            "not-a-lease",
            "00000000-0000-0000-0000-000000000007.zz",
            "00000000-0000-0000-0000-000000000007.-1",
            ".t",
        ] {
            assert_eq!(LeaseId::parse(text), None);
        }
    }
}
