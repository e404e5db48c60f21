//! All ranks succeed together, or all fail with the same reason.

use tensor::Comm;

use crate::error::{Error, Result};

/// Exchanges what each rank has to say; if one failed, everybody does.
///
/// # Errors
/// This rank's own error, else [`Error::Rank`] for the first rank that failed.
pub(crate) fn exchange(group: &dyn Comm, mine: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let message = match &mine {
        Ok(bytes) => [&[0], bytes.as_slice()].concat(),
        Err(e) => [&[1], e.to_string().as_bytes()].concat(),
    };
    let all = group.all_gather_bytes(&message)?;
    mine?;
    let mut out = Vec::with_capacity(all.len());
    for (rank, message) in all.into_iter().enumerate() {
        match message.split_first() {
            Some((0, bytes)) => out.push(bytes.to_vec()),
            Some((_, why)) => {
                return Err(Error::Rank { rank, what: String::from_utf8_lossy(why).into_owned() });
            }
            None => return Err(Error::Rank { rank, what: "it sent nothing".into() }),
        }
    }
    Ok(out)
}

/// [`exchange`] without anything to say.
///
/// # Errors
/// As [`exchange`].
pub(crate) fn agree<T>(group: &dyn Comm, mine: Result<T>) -> Result<T> {
    let (kept, outcome) = match mine {
        Ok(value) => (Some(value), Ok(Vec::new())),
        Err(e) => (None, Err(e)),
    };
    exchange(group, outcome)?;
    kept.ok_or_else(|| Error::Rank { rank: group.rank(), what: "lost its own result".into() })
}
