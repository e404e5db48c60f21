//! Giving space back: only the conductor deletes folders of tiles and weights, and packs, and only what no record names.

use straw::PackInfo;

use crate::{Command, Conductor, Error, Record, Step, memory::backoff_ms};

impl Conductor {
    /// Folders found on disk: those of superseded epochs that nothing names were never finished.
    pub(crate) fn on_folders(&mut self, folders: Vec<String>, out: &mut Step) {
        for folder in folders {
            if self.state.is_orphan(&folder)
                && !self.state.garbage.contains(&folder)
                && !self.memory.deleting.contains_key(&folder)
            {
                tracing::info!(folder, "no commit and no version names this folder of an earlier trainer: it goes");
                self.memory.deleting.insert(folder.clone(), None);
                out.commands.push(Command::DeleteFolder { folder });
            }
        }
    }

    pub(crate) fn on_deleted(
        &mut self,
        folder: String,
        result: Result<(), String>,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        match result {
            Ok(()) => {
                self.memory.deleting.remove(&folder);
                if self.state.garbage.contains(&folder) {
                    self.emit(out, Record::FolderDeleted { folder })?;
                }
            }
            Err(problem) => {
                tracing::warn!(folder, problem, "a folder could not be deleted; it is tried again");
                self.memory.deleting.insert(folder, Some(now + backoff_ms(u32::MAX)));
            }
        }
        Ok(())
    }

    /// Looks at the packs now and then.
    pub(crate) fn look_at_packs(&mut self, now: u64, out: &mut Step) {
        if self.memory.collect_ms <= now {
            self.memory.collect_ms = now + self.memory.give_back.look_every_ms;
            out.commands.push(Command::ListPacks);
        }
    }

    pub(crate) fn on_packs(&mut self, packs: &[PackInfo], now: u64, out: &mut Step) -> Result<(), Error> {
        let mut free = self.memory.collector.candidates(packs, &self.state.queue, now);
        if self.old_places_are_read() {
            free.clear();
        }
        if !free.is_empty() && self.state.queue.retire(&free).is_ok() {
            self.emit(out, Record::PacksRetired { packs: free })?;
        }
        if let Some(below) = self.memory.collector.horizon(packs, &self.state.queue, now) {
            self.emit(out, Record::PacksForgotten { below })?;
        }
        let retired = self.state.queue.retired();
        if packs.iter().any(|pack| retired.contains(&pack.name)) {
            out.commands.push(Command::RemovePacks { retired: retired.clone() });
        }
        self.choose_packs(packs, out);
        Ok(())
    }

    pub(crate) fn drive_folders(&mut self, now: u64, out: &mut Step) {
        // Older weights go when every engine that lives has acknowledged later ones, and none is still being told to load
        // them (one that is taken for dead may be loading all the same).
        let version = Some(self.state.version);
        let weights_free = self.memory.engines.values().all(|engine| match engine.updating {
            Some(updating) => Some(updating) >= version,
            None => !engine.live || engine.version == version,
        });
        let in_use = self.state.folders_in_use();
        for folder in &self.state.garbage {
            let free = !in_use.contains(folder) && (weights_free || !folder.starts_with("weights/"));
            let due = match self.memory.deleting.get(folder) {
                None => true,
                Some(again) => again.is_some_and(|at| at <= now),
            };
            if free && due {
                self.memory.deleting.insert(folder.clone(), None);
                out.commands.push(Command::DeleteFolder { folder: folder.clone() });
            }
        }
    }
}
