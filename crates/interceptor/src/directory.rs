#[derive(Debug)] pub struct Directory;
