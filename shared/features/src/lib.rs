//! Nothing but a list: its manifest asks for the features that the workspace as a whole has of what others wrote.
#![forbid(unsafe_code)]
