//! A terminal that is drawn upon again and again, and is afterwards as it was.

use std::io::{Read, Stdout, Write, stdout};

use anstream::{AutoStream, ColorChoice};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::execute;
use crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use tokio::sync::mpsc;

use crate::paint::{BAD, FAINT, in_style};

const CTRL_C: u8 = 0x03;

/// What somebody does at the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// q or Ctrl-C.
    Quit,
    /// Anything else: it is drawn anew.
    Other,
}

/// The screen; dropped, the terminal is as it was.
#[derive(Debug)]
pub struct Screen {
    out: Stdout,
    colours: bool,
}

impl Screen {
    /// Takes the terminal. Keys are sent to `keys`.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn open(keys: mpsc::UnboundedSender<Key>) -> std::io::Result<Self> {
        let colours = AutoStream::choice(&stdout()) != ColorChoice::Never;
        terminal::enable_raw_mode()?;
        // From here on, whatever fails puts it back.
        let mut screen = Screen { out: stdout(), colours };
        execute!(screen.out, EnterAlternateScreen, Hide)?;
        std::thread::spawn(move || read(&keys));
        Ok(screen)
    }

    /// Draws. `problem`: what is wrong, in the second line; `content`: lines for a width.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(
        &mut self,
        title: &str,
        problem: Option<&str>,
        content: impl FnOnce(usize) -> Vec<String>,
    ) -> std::io::Result<()> {
        let (width, height) = terminal::size()?;
        let (width, height) = (usize::from(width), usize::from(height));
        let cut = |text: &str| text.chars().take(width).collect::<String>();
        let mut lines = vec![in_style(FAINT, &cut(title)), in_style(BAD, &cut(problem.unwrap_or_default()))];
        lines.extend(content(width));
        if lines.len() > height {
            let left = lines.len() - height + 1;
            lines.truncate(height.saturating_sub(1));
            lines.push(in_style(FAINT, &cut(&format!("{left} lines more"))));
        }
        let lines = lines.iter().map(|line| match self.colours {
            true => line.clone(),
            false => anstream::adapter::strip_str(line).to_string(),
        });
        // One write: nobody sees half of it. The end of each line is cleared, then what is below.
        let text = lines.collect::<Vec<_>>().join("\u{1b}[K\r\n");
        execute!(self.out, MoveTo(0, 0))?;
        write!(self.out, "{text}\u{1b}[K\u{1b}[J")?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody can be told.
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Until nobody listens any more. The terminal gives keys as they are pressed, and no signals for them.
fn read(keys: &mpsc::UnboundedSender<Key>) {
    for byte in std::io::stdin().lock().bytes() {
        let wanted = match byte {
            Ok(b'q' | b'Q' | CTRL_C) => Key::Quit,
            Ok(_) => Key::Other,
            // No keyboard: whoever started it ends it.
            Err(_) => return,
        };
        if keys.send(wanted).is_err() {
            return;
        }
    }
}
