// Started with --inspect=127.0.0.1:0: queries the version of its own debugger on this machine.
const inspector = require('node:inspector');
const http = require('node:http');
const url = new URL(inspector.url());
http.get({ host: url.hostname, port: url.port, path: '/json/version' }, (response) => {
  let text = '';
  response.on('data', (part) => { text += part; });
  response.on('end', () => {
    console.log(JSON.parse(text).Browser.startsWith('node.js'));
    inspector.close();
  });
});
