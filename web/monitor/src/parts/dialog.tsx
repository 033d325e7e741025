import { useEffect, useId, useRef, type ReactNode } from "react";

/** A native modal dialog: it traps the focus, and Esc closes it. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const name = useId();
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby={name} onClose={onClose}>
      <h2 id={name}>{title}</h2>
      {children}
    </dialog>
  );
}
