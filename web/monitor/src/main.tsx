import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./app";
import { Store } from "./store";
import "./style.css";

// The server has put the token into a cookie; nobody should copy it with the address.
const address = new URL(location.href);
if (address.searchParams.has("token")) {
  address.searchParams.delete("token");
  history.replaceState(null, "", address.pathname + address.search + address.hash);
}

const store = new Store();
store.connect();

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App store={store} />
    </StrictMode>,
  );
}
