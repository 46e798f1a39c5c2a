// Streams one answer with Anthropic's SDK and prints what it gathered: node stream.mjs SDK URL BODY
const [, , sdk, baseURL, body] = process.argv;
const { default: Anthropic } = await import(sdk);
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const heard = { text: "", thinking: "", json: "" };
const stream = client.messages
  .stream(JSON.parse(body))
  .on("text", (piece) => (heard.text += piece))
  .on("thinking", (piece) => (heard.thinking += piece))
  .on("inputJson", (piece) => (heard.json += piece));
const final = await stream.finalMessage();
console.log(JSON.stringify({ heard, final }));
