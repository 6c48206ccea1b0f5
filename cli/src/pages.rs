//! Reads paged lists of the broker.

use anyhow::Result;

/// Page size. Every list of the broker returns this many entries if there are as many.
const PAGE: u64 = 1_000;

/// At most `limit` entries, and whether there are more. `page` fetches one page. If the list changes meanwhile, an entry may be
/// missed or returned twice.
pub async fn up_to<T>(
    most: u64,
    mut page: impl AsyncFnMut(u32, u64) -> Result<Vec<T>>,
) -> Result<(Vec<T>, bool)> {
    let mut entries = Vec::new();
    loop {
        let have = entries.len() as u64;
        // One more than wanted shows whether there are more.
        let wanted = most.saturating_add(1).saturating_sub(have).min(PAGE);
        if wanted == 0 {
            break;
        }
        let more = page(u32::try_from(wanted)?, have).await?;
        let last = (more.len() as u64) < wanted;
        entries.extend(more);
        if last {
            break;
        }
    }
    let more = entries.len() as u64 > most;
    entries.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Ok((entries, more))
}

/// All entries.
pub async fn all<T>(page: impl AsyncFnMut(u32, u64) -> Result<Vec<T>>) -> Result<Vec<T>> {
    Ok(up_to(u64::MAX, page).await?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For a list of this length: how many are returned, whether there are more, and what was requested.
    async fn asked(long: u64, most: u64) -> (usize, bool, Vec<(u32, u64)>) {
        let mut asked = Vec::new();
        let page = async |limit: u32, offset: u64| {
            asked.push((limit, offset));
            Ok((offset..long.min(offset + u64::from(limit))).collect())
        };
        let (entries, more) = up_to(most, page).await.unwrap();
        assert!(entries.iter().copied().eq(0..entries.len() as u64), "in order, each once");
        (entries.len(), more, asked)
    }

    #[tokio::test]
    async fn a_list_is_read_to_its_end_or_as_far_as_it_is_wanted() {
        assert_eq!(asked(7, 100).await, (7, false, vec![(101, 0)]));
        assert_eq!(asked(101, 100).await, (100, true, vec![(101, 0)]));
        assert_eq!(asked(1_000, 1_000).await, (1_000, false, vec![(1_000, 0), (1, 1_000)]));
        assert_eq!(
            asked(2_500, u64::MAX).await,
            (2_500, false, vec![(1_000, 0), (1_000, 1_000), (1_000, 2_000)])
        );
        assert_eq!(asked(2_500, 1_200).await, (1_200, true, vec![(1_000, 0), (201, 1_000)]));
    }
}
