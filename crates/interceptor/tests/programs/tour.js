const fs = require("fs"), os = require("os"), net = require("net"), dgram = require("dgram");
console.log("env", process.env.GREETING);
console.log("read", fs.readFileSync("/remote-files/file", "utf8"));
console.log("list", "[" + fs.readdirSync("/remote-files/list").sort().join(" ") + "]");
console.log("missing", !fs.existsSync("/remote-files/missing"));
fs.writeFileSync("/remote-files/written", "written");
console.log("write ok");
console.log("hostname", os.hostname());
const s = net.connect(7, "198.51.100.7", () => s.write("hello"));
s.on("data", (data) => {
  console.log("tcp", String(data));
  s.end();
  const u = dgram.createSocket("udp4");
  u.on("message", (data, from) => {
    console.log("packet", String(data), from.address + ":" + from.port);
    u.close();
  });
  u.send("packet", 7, "198.51.100.7");
});
