//! `thresh why`

use anyhow::Result;

use crate::{
    args::{Output, Why},
    display::say,
    local_why::local_why,
    on_cluster::find_here_or_hand_over,
    one_look::OneLook,
};

/// Says the one thing a run waits for.
pub fn why(args: Why) -> Result<u8> {
    let look = OneLook::at(find_here_or_hand_over(&args.which)?)?;
    let why = local_why(&look);
    say(&match args.output {
        Output::Json => serde_json::to_string(&why)?,
        Output::Human => why.lines(look.now).join("\n"),
    });
    Ok(0)
}
