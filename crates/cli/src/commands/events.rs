//! `thresh events`

use anyhow::Result;
use glance::Happening;
use local::status_file::EventLine;

use crate::{
    args::{Events, Output},
    display::say,
    on_cluster::find_here_or_hand_over,
    one_look::OneLook,
};

/// Says what happened in a run.
pub fn events(args: Events) -> Result<u8> {
    let look = OneLook::at(find_here_or_hand_over(&args.which)?)?;
    let happened: Vec<Happening> = look.file.events.iter().map(happening).collect();
    match args.output {
        Output::Json => {
            for one in &happened {
                say(&serde_json::to_string(one)?);
            }
        }
        Output::Human if happened.is_empty() => say("nothing has happened yet"),
        Output::Human => say(&glance::event_lines(&happened, look.now).join("\n")),
    }
    Ok(0)
}

/// An event as the state folder keeps it: of the run, without a mark of how grave it was.
pub fn happening(event: &EventLine) -> Happening {
    let EventLine { time, reason, text } = event.clone();
    Happening { time, warning: false, object: String::new(), reason, text, count: 1 }
}
